"""Studies of `partitions` and `marginals` on public files with coded columns ([S], §4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from dpdist.confidential.records import Records
from dpdist.core.records import Ints
from dpdist.job import Frozen, Job, Name
from dpdist.mechanisms.marginals.coded_tables import CodedTables
from dpdist.models.protocol import Draws
from dpdist.quality.microdata import RecordCodes, consistency, fitted, overlap
from dpdist.studies.kinds.one_stratum import (
    CAPTIONS,
    StudyOfSets,
    job_of_columns,
    over_sets,
    similarity,
)
from dpdist.studies.settings import Caption, Fact, MechanismArm, Replicate, StudyOfFiles

LEVELS = {"consistency_1": 0.01, "consistency_5": 0.05, "consistency_10": 0.1}
OF_FILES = (
    "from public files, under seeded NumPy noise. The results depend on these files' records, and may be shown because "
    "they are public."
)


class CodedColumn(Frozen):
    """Levels in the order of their codes; a level may stand for several values of the file."""

    column: str
    levels: tuple[tuple[str | int, ...], ...] = Field(min_length=2)


class CodedCase(Frozen):
    """Records of a public file that have a level in every column and lie within the ranges `keep`."""

    name: Name
    file: str = Field(description="in the folder that `dpdist study --data` names")
    keep: dict[str, tuple[float, float]] = Field(default_factory=dict)
    columns: dict[Name, CodedColumn] = Field(min_length=2)
    outcome: Name = Field(description="of the regression, the last level against the others")

    @property
    def kept(self) -> str:
        return "".join(f", {name} {low:g} to {high:g}" for name, (low, high) in self.keep.items())

    @property
    def sized(self) -> str:
        return ", ".join(f"{name} ({len(column.levels)} levels)" for name, column in self.columns.items())


class CodedArm(MechanismArm):
    """A mechanism; if `single`, one set has all of ε."""

    single: bool = False


class CodedStudy(StudyOfSets, StudyOfFiles):
    """Compares synthetic records with a public file's: distributions, χ² tests, logistic regression."""

    kind: Literal["coded_files"]
    cases: tuple[CodedCase, ...] = Field(min_length=1)
    mechanisms: tuple[CodedArm, ...] = Field(min_length=1)
    made_of: ClassVar[str] = OF_FILES

    @property
    def captions(self) -> Mapping[str, Caption]:
        same = (
            "Share of pairs of columns for which a χ² test has the same result on the file and on all synthetic sets "
            "together."
        )
        return {
            "specks": Caption("SPECKS", "Kolmogorov–Smirnov distance of both files' propensity scores, mean over sets."),
            **{name: Caption(f"association consistency at {level:.0%}", same) for name, level in LEVELS.items()},
            "overlap": Caption(
                "overlap of 95 % intervals of a logistic regression",
                "Mean over coefficients and sets; 1 is the file's own.",
            ),
            **CAPTIONS,
        }

    def replicate(self, case: int, number: int) -> Replicate:
        case_settings = self.cases[case]
        file = coded(self, case_settings)

        def measures_of(model: Any, sets: Sequence[Draws], rng: np.random.Generator) -> Mapping[str, float]:
            return measures(case_settings, file, [_drawn(model, theta, file, rng) for theta in sets])

        records, key = Records.of_outcomes(file.codes.astype(float)), self.key_of(case_settings.name, number)
        return self.measured(case_settings, records, key, measures_of)

    def facts(self) -> list[Fact]:
        return [
            ("Data", [f"{case.name}: {case.file}{case.kept}; columns {case.sized}" for case in self.cases]),
            ("Replicates", [f"R = {self.replicates} of the noise; the file is the same"]),
            self.budgets,
            self.randomness,
        ]

    def job_of(self, case: CodedCase, arm: CodedArm, epsilon: str) -> Job:
        columns = {
            name: {"bounds": (0, len(column.levels) - 1), "whole": True, "outside": "clip"}
            for name, column in case.columns.items()
        }
        sets = 1 if arm.single else self.sets
        return job_of_columns(columns, arm.mechanism, epsilon, self.adjacency, sets, case.outcome)


def coded(study: CodedStudy, case: CodedCase) -> RecordCodes:
    """The case's records as codes. Raises `StudyError` without the file."""
    path = study.path_of(case.file, f"cases.{case.name}.file")
    rows = pd.read_parquet(path)
    for name, (low, high) in case.keep.items():
        rows = rows[rows[name].between(low, high)]
    codes = np.column_stack(
        [
            rows[column.column]
            .map({text: code for code, texts in enumerate(column.levels) for text in texts})
            .to_numpy(float)
            for column in case.columns.values()
        ]
    )
    complete: Ints = codes[np.isfinite(codes).all(axis=1)].astype(np.int64)
    return RecordCodes(complete, tuple(len(column.levels) for column in case.columns.values()), np.ones(len(complete)))


def _drawn(model: Any, theta: Draws, file: RecordCodes, rng: np.random.Generator) -> RecordCodes:
    """n synthetic records; weights made from marginals sum to n."""
    n = len(file.weight)
    if isinstance(model, CodedTables):
        codes, weight = model.draw_codes(theta, n, rng)
        return RecordCodes(codes, file.sizes, weight * n / weight.sum())
    counts = rng.multinomial(n, theta["cells"][0])
    cell: Ints = np.column_stack(np.unravel_index(np.repeat(np.arange(len(counts)), counts), file.sizes)).astype(np.int64)
    return RecordCodes(cell, file.sizes, np.ones(n))


def measures(case: CodedCase, file: RecordCodes, sets: list[RecordCodes]) -> dict[str, float]:
    """Means over sets; χ² tests use all sets together."""
    outcome = list(case.columns).index(case.outcome)
    predictors = tuple(k for k in range(len(file.sizes)) if k != outcome)
    level = file.sizes[outcome] - 1
    in_file, similar = fitted(file, outcome, level, predictors), similarity(file, sets)
    return {
        "specks": similar["specks"],
        **{name: consistency(file, sets, alpha) for name, alpha in LEVELS.items()},
        "overlap": over_sets(lambda records: overlap(in_file, fitted(records, outcome, level, predictors)).mean(), sets),
        "one_way": similar["one_way"],
        "two_way": similar["two_way"],
    }
