"""Conjugate priors of a normal regression's coefficients and covariance, fixed before any record is seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.core.records import Floats
from dpdist.job import Job
from dpdist.models.design import Design


@dataclass(frozen=True)
class ConjugatePrior:
    """Prior B | Σ ~ MN(location, precision⁻¹, Σ) and Σ ~ IW(records, scale); it is improper if records = 0."""

    records: float
    scale: Floats
    location: Floats
    precision: Floats


def conjugate_prior(job: Job, matrix: Design, proper: bool) -> ConjugatePrior:
    """The prior of one stratum's model: the improper one, or the weak proper one if `proper`.

    The job states how many records the proper prior is worth, and their standard deviation of logarithms. If it states
    typical values of all columns, the prior of the intercept is worth this number of records too, otherwise almost nothing.
    """
    p, d = len(matrix.kept), len(job.components)
    location, precision, prior = np.zeros((p, d)), np.zeros((p, p)), job.likelihood.prior
    if not proper:
        return ConjugatePrior(0.0, np.zeros((d, d)), location, precision)
    stated = [c in prior.location for c in job.components]
    for component, column in enumerate(job.components):
        location[0, component] = np.log(prior.location.get(column, 1.0))
    np.fill_diagonal(precision, 1.0)
    precision[0, 0] = prior.records if all(stated) else 1e-4
    return ConjugatePrior(prior.records, prior.records * prior.log_sd**2 * np.eye(d), location, precision)
