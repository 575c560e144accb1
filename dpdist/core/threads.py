"""Limits linear algebra to one thread, because sums that several threads share out have other last digits."""

from __future__ import annotations

from contextlib import AbstractContextManager

from threadpoolctl import threadpool_limits


def single_threaded() -> AbstractContextManager[object]:
    """Within it, every BLAS has one thread, so that results do not depend on the number of processors."""
    # scipy brings a BLAS of its own, which can be limited only once it is loaded
    import scipy.linalg  # noqa: F401

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits
