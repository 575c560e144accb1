"""Jobs of every strict mechanism with noisy figures, over adversarial records, and what neighbours of each kind cost.

Contributions of single records are additive, which is tested; so pairs of single records are all neighbours there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from dpdist.audit.likelihood_ratios import Enough, LossMeter
from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Floats, Frame
from dpdist.engine.rounds import run_rounds
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.mechanisms.sanitized_lognormal.post import SanitizedLognormal
from dpdist.mechanisms.sanitized_lognormal.winsorising_inversion import Whitened
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import Concentrated, Strict
from dpdist.testing.losses import taken_in

LEVELS = {"field": ("arts", "law"), "sex": ("f", "m")}
CELLS = 4
SIZE = 700
"""Public records of every cell."""
JOB = """
dataset: audit
period: "2021"
columns:
  field: {{levels: [arts, law]}}
  sex: {{levels: [f, m]}}
  salary: {{bounds: [{low}, 1000], outside: clip}}
  paid: {{bounds: [0, 1], whole: true, outside: clip}}
  hours: {{bounds: [-50, 50], outside: clip}}
  weight: {{bounds: [{lightest}, {heaviest}], outside: clip}}
{survey}
outcome: {outcome}
model: {model}
mechanism: {{name: {mechanism}}}
synthetic_sets: {sets}
budget: {{epsilon: "{epsilon}", adjacency: {adjacency}{delta}}}
{predictors}
{reference}
{unit}
tables:
  - {{name: two, by: [field], statistics: [count]}}
"""
FINE = "  - {{name: one, by: [field, sex], statistics: [{statistics}]}}\n"
LOGNORMAL = "{family: lognormal, predictors: [field, sex]}"
BOUNDS = {"salary": (0.0, 1000.0), "paid": (0.0, 1.0), "hours": (-50.0, 50.0)}


class Loss(NamedTuple):
    """Worst loss over claimed loss: a record switched off or there; (y, w) exchanged at the same x; a record moved to
    another x, at the same limits and sizes."""

    off: float
    within: float
    across: float


@dataclass(frozen=True)
class Case:
    """A mechanism under an adjacency."""

    mechanism: str
    adjacency: str
    outcomes: tuple[str, ...] = ("salary",)
    weighted: bool = True
    gaussian: bool = False
    sets: int = 1
    epsilon: str = "1"
    statistics: str = "count, {mean: salary}"
    records: int = 60
    """Of the reference, in every cell."""
    fine: bool = True
    """With a table of the finest cells beside that of fields."""
    unit: int | None = None
    """Records of one household at most, where the privacy unit is one."""
    protect: str = ""
    """ε of noisy sample counts, under add_remove or an exchange for any other record."""

    @property
    def name(self) -> str:
        variants = [f"K = {len(self.outcomes)}" if len(self.outcomes) > 1 else "", "" if self.weighted else "no weight"]
        variants += [self.outcomes[0] if self.outcomes[0] != "salary" else "", "Gaussian" if self.gaussian else ""]
        variants += [f"m = {self.sets}" if self.sets > 1 else "", "counts alone" if self.statistics == "count" else ""]
        variants += ["units" if self.records < 10 else "", "" if self.fine else "one table"]
        return ", ".join([self.mechanism, *filter(None, variants)])

    @property
    def sums(self) -> int | None:
        """Noisy sums after which nothing more is read of the records; None: all that follow."""
        return {"sanitized_statistics": 1, "modips": 3}.get(self.mechanism)

    @cached_property
    def job(self) -> Job:
        noise = ", noise: gaussian" if self.gaussian else ""
        public = ", sensitivity: public" if self.mechanism == "laplace_composed" else ""
        law = ", law: normal" if self.mechanism == "modips" else ""
        bins = ", bins: 7" if self.mechanism == "perturbed_histogram" else ""
        # one histogram tells no columns apart: its tables have none
        tables = JOB.replace("by: [field]", "by: []") if bins else JOB + FINE * self.fine
        return parse_job(
            tables.format(
                low=1 if self.mechanism == "sanitized_statistics" else 0,
                lightest=1e-9 if self.mechanism == "sanitized_statistics" else 0,
                heaviest="1e+15" if self.mechanism == "sanitized_statistics" else 200,
                survey="survey: {weight: weight}" if self.weighted else "",
                outcome=f"[{', '.join(self.outcomes)}]" if len(self.outcomes) > 1 else self.outcomes[0],
                model=LOGNORMAL if self.mechanism == "sanitized_statistics" else "null",
                mechanism=self.mechanism + noise + public + law + bins,
                sets=self.sets,
                epsilon=self.epsilon,
                adjacency=self.adjacency + (", exchange: anywhere" if self._anywhere else ""),
                predictors=f'predictors: {{protect: {{epsilon: "{self.protect}"}}}}' if self.protect else "",
                delta=', delta: "1e-6"' if self.gaussian else "",
                reference="reference: {path: before.parquet}" if self.mechanism == "sanitized_statistics" else "",
                statistics=self.statistics.replace("salary", self.outcomes[0]),
                unit=f"privacy_unit: {{column: household, most: {self.unit}}}" if self.unit is not None else "",
            )
        )

    @property
    def _anywhere(self) -> bool:
        return bool(self.protect) and self.adjacency == "substitution"

    @cached_property
    def frame(self) -> Frame:
        codes = np.indices((2, 2)).reshape(2, -1).astype(np.int32)
        return Frame(dict(zip(LEVELS, codes, strict=True)), LEVELS, np.full(CELLS, SIZE), (), ())

    @cached_property
    def model(self) -> StratumModel:
        return builder_of(self.job).build(self.job, self.frame, slice(0, CELLS))

    def survey(self, seed: int, n: int) -> Records:
        """A file of n records a cell."""
        rng = np.random.default_rng(seed)
        cell = np.repeat(np.arange(CELLS), n)
        weight = np.clip(np.exp(rng.normal(2.5 + 0.3 * cell, 0.8)), 0.5, 200.0) if self.weighted else np.ones(len(cell))
        values = {
            "salary": np.minimum(np.exp(rng.normal(5.0 + 0.2 * cell, 0.7)), 1000.0),
            "paid": (rng.random(len(cell)) < 0.3 + 0.1 * cell).astype(float),
            "hours": np.clip(rng.normal(5.0 * cell, 12.0), -50.0, 50.0),
        }
        return records(cell, weight, np.column_stack([values[name] for name in self.outcomes]))

    @cached_property
    def learned(self) -> Whitened | None:
        return self.learned_on(self.survey(7, self.records))

    def learned_on(self, reference: Records) -> Whitened | None:
        """What the mechanism fixes on a file, by the functions of a run."""
        if isinstance(self.model, SanitizedLognormal):
            return self.model.learned(reference)
        return None

    def query(self, file: Records, learned: Whitened | None = None) -> LossMeter:
        """What the mechanism adds noise to, for this file."""
        meter = LossMeter(self.sums)
        rounds = MECHANISMS[self.job.mechanism.name].protect(self.job, self.model, Unheard(), learned or self.learned)
        try:
            run_rounds(rounds, self.model, None, Key(b"audit"), "all", [file], [Unheard()], answer=meter)  # type: ignore[arg-type]
        except Enough:
            return meter
        assert self.sums is None
        return meter

    @property
    def claimed(self) -> float:
        """ε, or ρ, under the job's own adjacency, as promised."""
        total = MECHANISMS[self.job.mechanism.name].promise(self.job).total
        assert isinstance(total, Strict | Concentrated)
        return float(total.rho if isinstance(total, Concentrated) else total.epsilon)

    @property
    def exchange(self) -> float:
        """What an exchange of records is said to cost, over `claimed`."""
        total = MECHANISMS[self.job.mechanism.name].promise(self.job).total
        if isinstance(total, Concentrated):
            return float(total.substitution_rho / total.rho)
        assert isinstance(total, Strict)
        return float(total.substitution_epsilon / total.epsilon)


class Unheard:
    """A recorder that keeps nothing."""

    wants_log_lik = False

    def bounds(self, columns: object) -> None: ...

    def log_lik(self, values: object) -> None: ...

    def posterior(self, fit: str, draws: object) -> None: ...

    def summary(self, values: object) -> None: ...


def records(cell: Any, weight: Any, outcomes: Floats) -> Records:
    n, none = len(cell), np.full(len(cell), -1, dtype=np.int32)
    frame = np.asarray(cell, dtype=np.int32)
    return Records(np.arange(n), frame, outcomes, np.asarray(weight, dtype=float), none)


def _outcomes(case: Case) -> list[tuple[float, ...]]:
    """Public bounds, one spacing beyond, and zeros."""
    few = len(case.outcomes) > 1
    found = []
    for name in case.outcomes:
        low, top = BOUNDS[name]
        own = {low, top, 0.0} | ({(low + top) / 2.0} if name != "paid" else set())
        if name != "paid" and not few:
            own |= {1e-300, np.nextafter(top, np.inf), np.nextafter(low, -np.inf), 1e6, low + 0.3 * (top - low)}
        found.append(sorted(float(value) for value in own))
    return list(product(*found))


def _weights(case: Case) -> list[float]:
    if not case.weighted:
        return [1.0]
    if case.mechanism == "perturbed_histogram":
        return [1.0, 200.0]
    cap = 40.0
    few = [1e-300, 200.0, cap, cap * (1.0 - 2.0**-21)]
    return few if len(case.outcomes) > 1 else [*few, 0.5, float(np.nextafter(cap, np.inf)), 1e6, 0.37 * cap]


def _whitened(case: Case, cell: int) -> Iterator[tuple[float, tuple[float, ...]]]:
    """At the reference, on the circle of winsorising and beyond it, in twelve directions and at Gaussian noise's worst."""
    from dpdist.mechanisms.sanitized_lognormal.sensitivity import REACH

    assert isinstance(case.learned, Whitened)
    whitening = case.learned.whitening
    worst = float(np.arccos(-0.75))
    for length, angle in product((0.0, 0.4, 0.75, 1.0, 3.0), [*np.arange(12) * np.pi / 6.0, worst, 2.0 * worst]):
        direction = np.array([np.cos(angle), np.sin(angle)])
        y, w = np.exp(whitening.centre[cell] + REACH * length * np.linalg.solve(whitening.matrix, direction))
        yield float(w), (float(y),)


def grid(case: Case) -> Records:
    """Adversarial records of every cell, as a run stores them."""
    found: list[tuple[int, float, tuple[float, ...]]] = []
    for cell in range(CELLS):
        if case.mechanism == "sanitized_statistics":
            found += [(cell, w, y) for w, y in _whitened(case, cell)]
        else:
            found += [(cell, w, y) for w, y in product(_weights(case), _outcomes(case))]
    cells, weights, outcomes = zip(*found, strict=True)
    return taken_in(case.job, records(cells, weights, np.array(outcomes)))


class Metered(NamedTuple):
    """Records of the grid, (record,); their sums, and these in scales of the noise, (record, figure); the scales."""

    tried: Records
    queries: Floats
    scales: Floats
    sums: Floats

    def distances(self, case: Case) -> tuple[Floats, Floats]:
        """Losses of a record switched off, (record, 1), and of one record for another, (record, record): ε or ρ."""
        metric, share = ("sqeuclidean", 0.5) if case.gaussian else ("cityblock", 1.0)
        none = np.zeros((1, self.queries.shape[1]))
        return share * cdist(self.queries, none, metric), share * cdist(self.queries, self.queries, metric)

    @property
    def same(self) -> NDArray[np.bool_]:
        return np.asarray(self.tried.frame[:, None] == self.tried.frame[None])


def metered(case: Case, most: int | None = None) -> Metered:
    """The grid's records one by one through the mechanism."""
    tried = grid(case)
    if most is not None and len(tried) > most:
        tried = tried.take(np.unique(np.linspace(0, len(tried) - 1, most).astype(np.int64)))
    found = [case.query(tried.part(k, k + 1)) for k in range(len(tried))]
    return Metered(
        tried, np.array([each.query for each in found]), found[0].scale, np.array([each.exact_sums for each in found])
    )


def worst(case: Case, noise: float = 1.0, most: int | None = None) -> Loss:
    """The worst losses over all pairs of records of the grid; `noise` is its scale over that in force."""
    own = metered(case, most)
    alone, apart = own._replace(queries=own.queries / noise).distances(case)
    found = (alone.max(), apart[own.same].max(), apart[~own.same].max())
    return Loss(*(float(each) / case.claimed for each in found))
