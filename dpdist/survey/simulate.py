"""Simulated survey samples, from a population with known totals and a seed.

`doctorates` is modelled on the 2017 Survey of Doctorate Recipients. Salary is lognormal around the figure of its group
(field and sex). A unit's inclusion probability grows with its size, log size = log salary + noise. The sample is drawn
systematically with probability proportional to size, stratified by field. A field's sample size is proportional to its
population. A record's weight is 1 divided by its inclusion probability.

Under `law: top_coded`, salaries are left-skewed in logs, rounded and top-coded instead. `growth` raises all salaries, and
`gap` scales the differences between the sexes. A second outcome, hours per week, is lognormal and grows with salary; its
noise has separate random streams. Population and sample are made in chunks, so their size is not limited by memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from dpdist.core.records import Codes, Floats, Ints, quotient_or
from dpdist.job import Simulate

FIELDS = (
    "biology",
    "computing",
    "mathematics",
    "physical_sciences",
    "psychology",
    "social_sciences",
    "engineering",
    "health",
)
SEXES = ("male", "female")
SHARE = np.array([0.27, 0.03, 0.05, 0.17, 0.14, 0.125, 0.18, 0.035])
FEMALE = np.array([0.45, 0.20, 0.24, 0.20, 0.65, 0.45, 0.15, 0.65])
MEN_SALARY = np.array([95, 140, 110, 110, 90, 95, 130, 105]) * 1e3
LOG_GAP = np.array([0.0, 0.10, 0.12, 0.14, 0.15, 0.18, 0.20, 0.22])
CHUNK = 65_536
TOP_CODE = 150e3
HOURS, HOURS_SLOPE, HOURS_SD = 42.0, 0.3, 0.15
"""Hours per week at a group's figure of salary; slope of log hours on log salary; sd of log hours given salary."""
OUTCOMES = ("salary", "hours")
SCHEMA = pa.schema(
    [("field", pa.string()), ("sex", pa.string()), *((name, pa.float64()) for name in (*OUTCOMES, "weight"))]
)


@dataclass(frozen=True)
class Truth:
    """Population counts, and totals of every outcome, by combination of levels: (field, sex) in simulated surveys."""

    levels: Mapping[str, tuple[str, ...]]
    count: Floats
    totals: Mapping[str, Floats]


@dataclass(frozen=True)
class Doctorates:
    """A simulated survey: `batches` yields the sample, `truth` has the population's figures."""

    settings: Simulate

    def population(self) -> Iterator[tuple[Codes, Codes, Floats, Floats]]:
        """Chunks of the population: arrays of field, sex, salary and size.

        A chunk has its own random stream, so it can be made again.
        """
        settings = self.settings
        for chunk, start in enumerate(range(0, settings.population, CHUNK)):
            rng = np.random.default_rng([settings.seed, chunk])
            units = min(CHUNK, settings.population - start)
            field = np.searchsorted(np.cumsum(SHARE), rng.random(units) * SHARE.sum(), side="right").astype(np.int32)
            field = np.minimum(field, len(FIELDS) - 1).astype(np.int32)
            sex = (rng.random(units) < FEMALE[field]).astype(np.int32)
            typical = np.log(MEN_SALARY[field]) - settings.gap * LOG_GAP[field] * sex + np.log1p(settings.growth)
            spread = (
                rng.standard_normal(units) if settings.law == "lognormal" else 2.0 - rng.standard_gamma(4.0, units) / 2.0
            )
            log_salary = typical + settings.sd * spread
            noise = settings.noise_sd * rng.standard_normal(units)
            size = np.exp(log_salary + (noise if settings.noise == "normal" else np.exp(noise)))
            salary = np.exp(log_salary)
            if settings.law == "top_coded":
                salary = np.clip(np.round(salary, -3), 1e3, TOP_CODE)
            yield field, sex, salary, size

    @cached_property
    def truth(self) -> Truth:
        count, salaries, hours = np.zeros((3, len(FIELDS), 2))
        for chunk, (field, sex, salary, _) in enumerate(self.population()):
            np.add.at(count, (field, sex), 1.0)
            np.add.at(salaries, (field, sex), salary)
            np.add.at(hours, (field, sex), self.hours(chunk, field, sex, salary))
        return Truth({"field": FIELDS, "sex": SEXES}, count, {"salary": salaries, "hours": hours})

    def hours(self, chunk: int, field: Codes, sex: Codes, salary: Floats) -> Floats:
        """Hours per week of one chunk of the population, (unit,)."""
        noise = np.random.default_rng([self.settings.seed, chunk, 1]).standard_normal(len(salary))
        above = np.log(salary / MEN_SALARY[field]) + LOG_GAP[field] * sex
        return np.asarray(HOURS * np.exp(HOURS_SLOPE * above + HOURS_SD * noise))

    @cached_property
    def allocation(self) -> Ints:
        """Sample size per field, proportional to the field's population; rounded so that the sizes add up to the sample."""
        share = self.truth.count.sum(axis=1) * self.settings.sample / self.settings.population
        size = np.floor(share).astype(np.int64)
        rest = np.argsort(size - share, kind="stable")[: self.settings.sample - int(size.sum())]
        size[rest] += 1
        return np.asarray(size, dtype=np.int64)

    @cached_property
    def _rate(self) -> Floats:
        """The factor c of each field for which inclusion probabilities min(1, c · size) add up to the field's sample
        size.

        Units with probability 1 raise the factor of the others, so the computation is repeated until it is stable.
        """
        rate = np.zeros(len(FIELDS))
        certain_at = np.full(len(FIELDS), np.inf)
        while True:
            sure, rest = np.zeros(len(FIELDS)), np.zeros(len(FIELDS))
            for field, _, _, size in self.population():
                certain = size >= certain_at[field]
                sure += np.bincount(field[certain], minlength=len(FIELDS))
                rest += np.bincount(field[~certain], weights=size[~certain], minlength=len(FIELDS))
            new = quotient_or(np.inf, self.allocation - sure, rest)
            if np.array_equal(new, rate):
                return rate
            rate = new
            certain_at = quotient_or(np.inf, 1.0, rate)

    def batches(self) -> Iterator[pa.RecordBatch]:
        rng = np.random.default_rng([self.settings.seed, 2**32])
        reached = rng.random(len(FIELDS))
        for chunk, (field, sex, salary, size) in enumerate(self.population()):
            chance = np.minimum(1.0, self._rate[field] * size)
            selected = np.zeros(len(field), dtype=bool)
            for f in range(len(FIELDS)):
                inside = np.flatnonzero(field == f)
                steps = reached[f] + np.cumsum(chance[inside])
                previous = np.concatenate([[reached[f]], steps[:-1]])
                selected[inside] = np.floor(steps) > np.floor(previous)
                reached[f] = steps[-1] if len(steps) else reached[f]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(np.array(FIELDS)[field[selected]]),
                    pa.array(np.array(SEXES)[sex[selected]]),
                    pa.array(salary[selected]),
                    pa.array(self.hours(chunk, field, sex, salary)[selected]),
                    pa.array(1.0 / chance[selected]),
                ],
                schema=SCHEMA,
            )
