"""Lists the noisy sufficient statistics for `measurements.parquet`, the public list of a release's noisy figures."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.mechanisms.figures import (
    LAPLACE,
    SUM_OF_ABSENT,
    Figures,
    cells_of,
)
from dpdist.mechanisms.modips.moments import Moments
from dpdist.mechanisms.modips.sanitized_sums import Sanitized, sums_of
from dpdist.mechanisms.modips.sensitivity import groups, together
from dpdist.mechanisms.modips.spec import Modips
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws
from dpdist.privacy.queries import moves

DEFINITIONS = {
    "1 - v": SUM_OF_ABSENT,
    "v u": "the sum of v u, u = (y - m) / R, with y the outcome, m the centre and R the half_width of its public bounds, "
    "all of logarithms under a lognormal law; v as in 1 - v, and 1 without weights. By its law a noisy sum is set "
    "to the nearest end of its domain (clamped), or drawn from the law truncated to it (bounded)",
    "v (u^2 - 1/2)": "over all cells of the stratum, in the notation of v u",
    "v 1[y = k]": "the sum of v over records of the level k; its law as of v u",
}
"""Definitions of the statistics by name, for the metadata of the file."""


def figures(release: ReleaseView, model: Sanitized, stratum: int, theta: Draws) -> Iterator[Figures]:
    """Figures by group: sums of 1 − v, of vu or of v 1[y = k] in every cell, and of v(u² − 1/2) over all cells.

    `DEFINITIONS` explains the letters.
    """
    cells, said = cells_of(release, model, stratum), release.job.mechanism
    assert isinstance(said, Modips)
    given = sums_of(release.job)
    whole = {name: level for name, level in cells[0].items() if name in release.frame.strata}
    law = f"{model.truncation}_{LAPLACE}"
    for group, (start, stop), scale in zip(groups(*given), model.parts, model.scales, strict=True):
        values = theta["sums"][0, start:stop]
        own = cells if (stop - start) % len(cells) == 0 and group.name != "v (u^2 - 1/2)" else [whole]
        several = (stop - start) // len(own)
        names = [group.name] if several == 1 else [f"v 1[y = k] {level:g}" for level in getattr(model, "levels", ())]
        moved = moves(release.job) * (group.sensitivity if said.sanitization == "individual" else together(*given))
        yield Figures(
            own,
            names,
            values.reshape(len(own), several),
            [scale] * several,
            lambda *_: _of_bounds(model),
            law=law,
            sensitivity=float(moved),
        )


def _of_bounds(model: Sanitized) -> tuple[float | None, float | None, float | None]:
    """The centre of the outcome's bounds, the weight's upper bound, and the half width of the outcome's bounds.

    Under a lognormal law, they are the bounds of the outcome's logarithm.
    """
    cap = None if model.weights is None else model.weights[1]
    return (model.middle[0], cap, model.middle[1]) if isinstance(model, Moments) else (None, cap, None)
