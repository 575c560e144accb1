"""Simulates a case's confidential file: outcomes and, for a model that has them, public predictors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Floats, Frame
from dpdist.studies.kinds.simulation_settings import Case


class SimulatedFile(NamedTuple):
    """Records with weight 1, and the frame of their predictors."""

    frame: Frame
    records: Records

    @property
    def outcome(self) -> Floats:
        return self.records.outcome


def simulated_file(case: Case, rng: np.random.Generator) -> SimulatedFile:
    """Draws a file from the case's law. Predictors of a law are left out where the model has none."""
    law = case.generator.generator()
    sampled, levels = law.sample(case.n, rng), law.levels if case.has_predictors else {}
    sizes = tuple(len(each) for each in levels.values())
    rows = np.zeros(case.n, dtype=np.int32)
    codes: dict[str, Codes] = {}
    if sizes:
        met, row = np.unique(
            np.ravel_multi_index(tuple(sampled.codes[name] for name in levels), sizes), return_inverse=True
        )
        rows = row.astype(np.int32)
        codes = {name: each.astype(np.int32) for name, each in zip(levels, np.unravel_index(met, sizes), strict=True)}
    frame = Frame(codes, levels, np.bincount(rows), (), ())
    none = np.zeros(case.n, dtype=np.int32)
    return SimulatedFile(frame, Records(np.arange(case.n), rows, sampled.outcome, np.ones(case.n), none))
