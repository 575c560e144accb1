"""Surveys whose sample counts are released under noise: how often intervals hold the population's figures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Floats, Frame
from dpdist.core.table_cells import cross
from dpdist.engine.rounds import Unwatched, noise_of, run_rounds
from dpdist.estimation.estimators import Interval
from dpdist.job import Job
from dpdist.mechanisms.laplace_tables.post import NoisyTables
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.claims import promised
from dpdist.privacy.noise import simulated_noise
from dpdist.privacy.noisy_counts import counts, levels, noise_name, noisy_frame
from dpdist.publish.noisy_figures import NoisedTables
from dpdist.publish.public_bounds import expectations
from dpdist.publish.released import ReleasedObject
from dpdist.publish.standard_errors import laws, spreads_under
from dpdist.publish.tables import from_parameters
from dpdist.runtime.reference import learned_from
from dpdist.sampling import facts
from dpdist.sampling.samplers import ExactSampler

LEVELS = {"field": ("arts", "law", "music", "physics"), "sex": ("f", "m"), "year": ("1", "2", "3")}
CODES = np.indices([4, 2, 3]).reshape(3, -1).astype(np.int32)
FIELD, SEX, YEAR = CODES
RATE = np.array([0.4, 0.3, 0.2, 0.1])[FIELD] * np.array([0.6, 0.4])[SEX] * np.array([0.5, 0.3, 0.2])[YEAR]
"""Of the population, by combination."""
RECORDS = 1500
SD = 0.4
"""Of log pay."""
WEIGHTS = np.array([30.0, 40.0, 50.0])
"""Of a record, by year, on average."""
SPREAD = 0.25
"""Of log weights within a combination."""
REFERENCE = ("reference_tables", "sanitized_statistics")
WHOLE = ("marginals",)
OF_STRATA = ("marginals", "perturbed_histogram")


@dataclass(frozen=True)
class Kind:
    """A mechanism with noisy sample counts; `part` of ε is theirs."""

    mechanism: str
    part: str
    epsilon: int = 4
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return " ".join([self.mechanism, *(str(value) for _, value in self.settings), self.part])

    @property
    def weighted(self) -> bool:
        return self.mechanism != "perturbed_histogram"

    @cached_property
    def job(self) -> Job:
        whole = {"whole": True} if self.mechanism in WHOLE else {}
        of_strata = self.mechanism in OF_STRATA
        gaussian = ("noise", "gaussian") in self.settings
        said = {
            "dataset": "counted",
            "period": "2021",
            "columns": {
                **{name: {"levels": list(own)} for name, own in LEVELS.items()},
                "pay": {"bounds": [1, 100], "outside": "clip", **whole},
                "weight": {"bounds": [5, 150], "outside": "clip"},
            },
            "survey": {"weight": "weight"} if self.weighted else {},
            "strata": ["field"] if of_strata else [],
            "outcome": "pay",
            "mechanism": {"name": self.mechanism, **dict(self.settings)},
            "budget": {"epsilon": str(self.epsilon), "adjacency": "add_remove", **({"delta": "1e-6"} if gaussian else {})},
            "predictors": {"protect": {"epsilon": self.part.replace("1/", f"{self.epsilon}/")}},
            "tables": [
                {
                    "name": "t",
                    "by": ["field"] if of_strata else ["field", "sex"],
                    "margins": True,
                    "statistics": ["count", {"mean": "pay"}],
                },
                *([] if of_strata else [{"name": "u", "by": ["year"], "statistics": ["count"]}]),
            ],
        }
        if self.mechanism in REFERENCE:
            said["reference"] = {"path": "before.parquet"}
        if self.mechanism == "sanitized_statistics":
            said["model"] = {"family": "lognormal", "predictors": ["field", "sex"]}
        return Job.model_validate(said)

    @cached_property
    def columns(self) -> list[str]:
        return list(self.job.categories)

    def crossed(self, records: Floats) -> Frame:
        """The job's frame, crossed, of counts by combination."""
        used = [list(LEVELS).index(name) for name in self.columns]
        sizes = [len(LEVELS[name]) for name in self.columns]
        codes = np.indices(sizes).reshape(len(sizes), -1).astype(np.int32)
        row = np.ravel_multi_index(tuple(CODES[k] for k in used), sizes)
        count = np.bincount(row, weights=records, minlength=len(codes[0])).astype(np.int64)
        names = dict(zip(self.columns, codes, strict=True))
        return Frame(names, {name: LEVELS[name] for name in self.columns}, count, self.job.strata, ())

    def survey(self, rng: np.random.Generator) -> tuple[Frame, Records]:
        """A sample with replacement."""
        own = rng.multinomial(RECORDS, RATE / RATE.sum())
        combination = np.repeat(np.arange(len(RATE)), own)
        used = [list(LEVELS).index(name) for name in self.columns]
        row = np.ravel_multi_index(tuple(CODES[k][combination] for k in used), [len(LEVELS[n]) for n in self.columns])
        order = np.argsort(row, kind="stable")
        combination, row = combination[order], row[order].astype(np.int32)
        pay = np.clip(np.exp(rng.normal(location(combination), SD)), 1.0, 100.0)
        pay = np.rint(pay) if self.mechanism in WHOLE else pay
        spread = np.exp(rng.normal(-(SPREAD**2) / 2.0, SPREAD, len(row)))
        weight = WEIGHTS[YEAR[combination]] * spread if self.weighted else np.ones(len(row))
        none = np.full(len(row), -1, dtype=np.int32)
        return self.crossed(own.astype(float)), Records(np.arange(len(row)), row, pay, weight, none)

    def truth(self) -> tuple[Floats, Floats]:
        """Counts and means of the population in the cells of the first table."""
        weight = WEIGHTS[YEAR] if self.weighted else np.ones(len(RATE))
        cells = cross(self.crossed(np.zeros(len(RATE))), self.job.tables[0].by, True)
        held = cells.membership @ self._rows
        expected = np.exp(location(np.arange(len(RATE))) + SD**2 / 2.0)
        count, total = (held @ (RECORDS * RATE * weight * each) for each in (1.0, expected))
        return count, total / count

    @cached_property
    def _rows(self) -> Floats:
        """Which frame row a combination is in, (row, combination)."""
        return np.array([self.crossed(np.eye(len(RATE))[k]).count for k in range(len(RATE))]).T.astype(float)

    def release(self, key: Key) -> ReleasedObject:
        """Of a new sample, in memory and under keyed noise."""
        job, exact_and_records = self.job, self.survey(key.generator("survey"))
        exact, file = exact_and_records
        rng = key.generator("counts")
        measured = [
            values + simulated_noise(noise_name(job), level.scale, len(values), rng)
            for level, values in zip(levels(job), counts(job, exact), strict=True)
            if level.scale is not None
        ]
        frame = noisy_frame(job, exact, measured)
        sets: dict[str, Any] = {}
        for stratum, label in enumerate(frame.stratum_labels):
            rows = frame.rows_of(stratum)
            model, mechanism = builder_of(job).build(job, frame, rows), mechanism_of(job)
            here = (file.frame >= rows.start) & (file.frame < rows.stop)
            learned = None
            if self.mechanism in REFERENCE:
                earlier = self.survey(key.generator("earlier"))[1]
                learned = learned_from(job, model, None, key, label, earlier, len(file))  # type: ignore[arg-type]
            rounds = mechanism.protect(job, model, Unwatched(), learned)
            own = key.child(label)
            found = run_rounds(rounds, model, ExactSampler(1), own, label, [file.take(here)], noise=noise_of(own))
            sets[label] = model.describe(found.parameters[0])
        return ReleasedObject(job, promised(mechanism.promise(job), facts(job)), frame, (sets,), key.child("publish"))

    def intervals(self, release: ReleasedObject) -> list[list[Interval]]:
        """Counts and means of the first table; and as control as if sample counts were exact."""
        said = self.job.tables[0]
        cells = cross(release.frame, said.by, said.margins)
        model = release.model(0)
        if isinstance(model, NoisyTables):
            return [NoisedTables.of(release, model).intervals(said, cells)[:2]] * 2
        expected, known = expectations(release), spreads_under(release, laws(release, lambda _: None))
        assert expected is not None
        assert known is not None
        spreads = known[0], known[0]._replace(recounts=None)
        return [from_parameters(release, cells, expected, spread)[:2] for spread in spreads]


def location(combination: Any) -> Floats:
    return np.asarray(3.0 + 0.1 * FIELD[combination] + 0.15 * SEX[combination])


def coverage(kind: Kind, replicates: int, seed: int) -> Floats:
    """The part of cells that intervals hold, (with and without the counts' noise, counts and means)."""
    truth, held = kind.truth(), np.zeros((2, 2))
    for number in range(replicates):
        release = kind.release(Key(seed.to_bytes(32, "big")).child(str(number)))
        for row, intervals in enumerate(kind.intervals(release)):
            for column, (interval, value) in enumerate(zip(intervals, truth, strict=True)):
                held[row, column] += ((interval.lower <= value) & (value <= interval.upper)).mean()
    return held / replicates
