"""Computes how far a published figure differs from the direct figure of the same sample by chance.

Results are confidential.

Published variance T = E + N: E of the sample, N of the noise. The direct figure has D of the sample. Both are of one
sample, so most of E and D is the same error and falls out of their difference. The variance of the difference is

    N + E + D − 2ρ√(ED),    ρ = min(SAME_SAMPLE, √(E/D), √(D/E)).

The ratios: if the figure with the smaller variance is efficient, its covariance with the other is its own variance
(Hausman 1978), and the difference has |E − D|. SAME_SAMPLE bounds ρ where both are as large: figures that see clipped
records and direct ones of whole records do not err quite alike. What samples of other sizes would bring to a count is in
E and D and in neither's difference: it is left out of both where it is known.

Where the mechanism cannot add noise anew, N is not known apart, and may be all of T: then ρ = 0, which is the most.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from dpdist.core.records import Floats

SAME_SAMPLE = 0.9


def by_chance(rows: pd.DataFrame) -> Floats:
    """Standard deviation of published minus direct figure, (row,), if the published standard error is right."""
    total, direct = rows["synthetic_se"].to_numpy(dtype=float) ** 2, rows["direct_se"].to_numpy(dtype=float) ** 2
    given = rows.get("direct_se_given_n", pd.Series(np.nan, index=rows.index)).to_numpy(dtype=float) ** 2
    sizes = np.where(np.isfinite(given), np.maximum(direct - given, 0.0), 0.0)
    noise = noise_error(rows) ** 2
    known = np.isfinite(noise)
    noise = np.where(known, np.minimum(noise, total), 0.0)
    own, direct = np.maximum(total - noise - sizes, 0.0), np.maximum(direct - sizes, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(np.minimum(own, direct) / np.maximum(own, direct))
    rho = np.where(known, np.fmin(SAME_SAMPLE, np.nan_to_num(ratio)), 0.0)
    return np.asarray(np.sqrt(noise + own + direct - 2.0 * rho * np.sqrt(own * direct)))


def noise_error(rows: pd.DataFrame) -> Floats:
    """Standard errors by noise alone, (row,); NaN where they are not known, as in evaluations of before."""
    unknown = pd.Series(np.nan, index=rows.index)
    return np.asarray(rows.get("synthetic_noise_se", unknown), dtype=float)
