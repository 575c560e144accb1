"""Computes by how much a published figure differs from the direct figure of the same sample by chance alone.

Results are confidential. The published variance T has two parts: T = E + N, with E from the sample and N from the noise.
The direct figure has the variance D, all from the sample. Both figures come from one sample. So most of E and D is a common
error, which cancels in the difference. The difference has the variance

    N + E + D − 2ρ√(ED),    ρ = min(SAME_SAMPLE, √(E/D), √(D/E)).

The two ratios follow from a case: if the figure with the smaller variance is efficient, its covariance with the other
figure is its own variance (Hausman 1978). The difference then has the variance |E − D|. SAME_SAMPLE limits ρ where E and D
are equal, because clipped and unclipped records have slightly different errors. A count's variance from random sample sizes
is in E and in D, but not in the difference. It is subtracted from both where it is known.

Where the mechanism cannot simulate its noise again, N is unknown and may be all of T. Then ρ = 0, which gives the largest
variance.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from dpdist.core.records import Floats

SAME_SAMPLE = 0.9


def by_chance(rows: pd.DataFrame) -> Floats:
    """Returns the standard deviation of published less direct figure, (row,), if the published standard error is right."""
    total, direct = rows["synthetic_se"].to_numpy(dtype=float) ** 2, rows["direct_se"].to_numpy(dtype=float) ** 2
    given = rows.get("direct_se_given_n", pd.Series(np.nan, index=rows.index)).to_numpy(dtype=float) ** 2
    sizes = np.where(np.isfinite(given), np.maximum(direct - given, 0.0), 0.0)
    noise = noise_error(rows) ** 2
    finite = np.isfinite(noise)
    noise = np.where(finite, np.minimum(noise, total), 0.0)
    sampling, direct = np.maximum(total - noise - sizes, 0.0), np.maximum(direct - sizes, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(np.minimum(sampling, direct) / np.maximum(sampling, direct))
    rho = np.where(finite, np.fmin(SAME_SAMPLE, np.nan_to_num(ratio)), 0.0)
    return np.asarray(np.sqrt(noise + sampling + direct - 2.0 * rho * np.sqrt(sampling * direct)))


def noise_error(rows: pd.DataFrame) -> Floats:
    """Returns standard errors due to noise alone, (row,).

    They are NaN where they are unknown, as in evaluations by earlier versions.
    """
    unknown = pd.Series(np.nan, index=rows.index)
    return np.asarray(rows.get("synthetic_noise_se", unknown), dtype=float)
