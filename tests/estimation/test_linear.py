"""Roots of covariance matrices do not hang on last digits."""

import numpy as np
import pytest

from dpdist.core.records import Floats
from dpdist.estimation.linear import symmetric_root


def turned(values: list[float], angle: float) -> Floats:
    """A matrix with these eigenvalues and eigenvectors at this angle."""
    c, s = np.cos(angle), np.sin(angle)
    vectors = np.array([[c, -s], [s, c]])
    return np.asarray(vectors * values @ vectors.T)


@pytest.mark.parametrize("values", [[4.0, 1.0], [1e12, 1.0], [2.0, 0.0], [0.0, 0.0]])
def test_the_root_times_itself_is_the_covariance(values: list[float]) -> None:
    for covariance in (turned(values, 0.3), np.stack([turned(values, 0.3), np.eye(2)])):
        root = symmetric_root(covariance)
        np.testing.assert_allclose(root @ root, covariance, rtol=1e-9, atol=1e-12 * max(values))
        np.testing.assert_array_equal(root.shape, covariance.shape)


@pytest.mark.parametrize("values", [[1.0, 1.0], [3.0, 0.0], [1.0, 1.0 + 1e-15]])
def test_last_digits_of_a_covariance_stay_last_digits_of_its_root(values: list[float]) -> None:
    """Alike eigenvalues, and one of 0 that rounding makes positive or negative. Control: the root by eigenvectors jumps."""
    covariance = turned(values, 0.3)
    digits = 1e-15 * np.array([[1.0, -2.0], [-2.0, -1.0]])
    other = covariance + digits * np.abs(covariance).max()
    np.testing.assert_allclose(symmetric_root(other), symmetric_root(covariance), atol=1e-13)

    def by_eigenvectors(matrix: Floats) -> Floats:
        sizes, vectors = np.linalg.eigh(matrix)
        return np.asarray(vectors * np.sqrt(np.maximum(sizes, 0.0)))

    assert np.abs(by_eigenvectors(other) - by_eigenvectors(covariance)).max() > 1e-9
