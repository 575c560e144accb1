"""What limits clip where the law has moved since the reference, by what noisy sums show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpdist.core.records import Codes, Floats
from dpdist.core.sharing import share_out
from dpdist.mechanisms.tables.expected import ExpectedFile
from dpdist.mechanisms.tables.limits import TableLimits, choose, following, left_of_changes
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.residual_samples import PLANNED_DRIFT

FAR = 0.5
"""Relative change of a base cell's means beyond which sums show less of it than of their other cells."""


def followed_limits(
    file: ExpectedFile, limits: Sequence[TableLimits], calibrated: Prediction, law: Prediction
) -> tuple[TableLimits, ...]:
    """Limits of all measurements, with what they clip under this law; those of tables are about the `calibrated` one."""
    before, count, means, weight = file.prediction, file.count[:, None], file.prediction.means, law.means[:, :1]
    drift = count * np.column_stack([weight - means[:, :1], weight * (law.means[:, 1:] - means[:, 1:])])
    everywhere, followed = np.zeros(len(file.reference.weight), dtype=np.int32), list[TableLimits]()
    light = before.without_factors, law.without_factors, file.informed.without_factors, calibrated.without_factors
    clipping = _Following(*light, file.count, file.highest, file.lowest)
    bare = [replace(table, unequal=None) for table in limits]
    pieces = list(zip(bare, (everywhere, *file.placed_records), (True, *[False] * len(file.tables)), strict=True))
    for table, clipped in zip(limits, share_out(clipping, pieces), strict=True):
        sums = np.column_stack([drift[:, 0], (means[:, 1:] - table.mean[table.cell]) * drift[:, :1] + drift[:, 1:]])
        lacking = 0.0 if clipped.unequal is None else table.added(sums * (clipped.unequal - 1.0))
        followed.append(replace(clipped, cell=table.cell, expected=table.added(sums), lacking=lacking))
    return tuple(followed)


@dataclass(frozen=True)
class _Following:
    """Work on limits, the table's cell of every reference record, and whether the table is that of all records: limits with
    what they clip where the law has moved.

    Residuals of all records are taken from the prediction `informed`, and in other tables from the `calibrated` one.
    """

    before: Prediction
    law: Prediction
    informed: Prediction
    calibrated: Prediction
    count: Floats
    highest: Floats
    lowest: Floats

    def __call__(self, piece: tuple[TableLimits, Codes, bool]) -> TableLimits:
        limits, placed, of_all = piece
        law, about = following(self.law, self.before, limits.cell, placed, self.count), self.calibrated
        about, ends = (self.informed if of_all else about), (self.highest, self.lowest)
        followed = choose(limits.cell, placed, self.count, law, 1.0, *ends, PLANNED_DRIFT, limits, about=about)
        unequal = left_of_changes(followed, self.law, about, self.count, self.lowest) if self.far else None
        return replace(followed, unequal=unequal)

    @property
    def far(self) -> bool:
        """Whether a base cell has moved by more than `FAR`, relative to its mean, or mean and spread of an outcome."""
        moved = np.abs(self.law.means - self.calibrated.means)
        moved[:, 1:] *= self.calibrated.means[:, :1]
        reach = self.calibrated.drifting
        return bool((moved > FAR * reach)[reach > 0.0].any())
