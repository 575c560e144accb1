"""The released object, all that leaves the confidential side: `released/`, its job with other tables, batches of strata."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy

from dpdist.core.confidential import refuse_confidential
from dpdist.core.errors import JobError, Problem, WorkspaceError
from dpdist.core.files import replaced, version_of, write_json, write_text
from dpdist.core.keys import Key
from dpdist.core.public_files import MANIFEST, DamagedFile, check_files, read_object
from dpdist.core.records import POOLED, TOTAL, Cells, Crosstab, Floats
from dpdist.estimation.crosstab_table import crosstab_table, read_crosstab, read_job
from dpdist.estimation.donors import (
    DONORS,
    HISTORY,
    REFERENCE_FILE,
    Donors,
    History,
    PeriodTotals,
    donors_from_table,
    donors_table,
    read_history,
    read_points,
    write_history,
)
from dpdist.estimation.estimators import STATISTICS, Stage, stratum_sizes
from dpdist.job import DesignEffect, Job, Statistic, Table, budget_text, family_facts
from dpdist.job.specs import AGAIN, Former
from dpdist.mechanisms.parts import builder_of
from dpdist.models.copula.reference_summary import Facts, facts_from_table, facts_table
from dpdist.models.protocol import Draws, StratumModel, supports
from dpdist.privacy.guarantees import GuaranteeName, bound_target, record_epsilon

KEY = "design_effects"


def design_effects(job: Job, promise: Mapping[str, Any]) -> tuple[DesignEffect, ...]:
    """Returns the design effects of a release, or none. A figure takes the first effect that fits it."""
    if not job.survey.effects_of_reference:
        return job.survey.stated_effects
    return effects_in_promise(promise)


def effects_in_promise(promise: Mapping[str, Any]) -> tuple[DesignEffect, ...]:
    """Returns the effects estimated from a reference. Raises `ValueError` or `TypeError` for wrong entries."""
    return tuple(DesignEffect.model_validate(entry) for entry in promise.get("reference", {}).get(KEY, ()))


def effect_of(effects: tuple[DesignEffect, ...], columns: frozenset[str], statistic: str, outcome: str | None) -> float:
    """Returns the effect of a statistic in cells crossed by these columns; 1 if none is known."""
    return next((effect.effect for effect in effects if effect.fits(columns, statistic, outcome)), 1.0)


def effects_in(effects: tuple[DesignEffect, ...], cells: Cells, statistic: str, outcome: str | None) -> Floats:
    """Returns a statistic's effects, (cell,)."""
    if not effects:
        return np.ones(len(cells))
    crossed = [
        frozenset(name for name, level in zip(cells.by, label, strict=True) if level != TOTAL) for label in cells.labels
    ]
    by_columns = {columns: effect_of(effects, columns, statistic, outcome) for columns in set(crossed)}
    return np.array([by_columns[columns] for columns in crossed])


def plain_effects(effects: tuple[DesignEffect, ...], cells: Cells, outcome: str) -> list[Floats]:
    """Returns the effects of counts, means and totals, (cell,) each. Counts have the same effects for every outcome."""
    return [effects_in(effects, cells, name, None if name == "count" else outcome) for name in STATISTICS]


def further_effects(effects: tuple[DesignEffect, ...], cells: Cells, statistic: Statistic) -> Floats:
    """Returns the effects of a further statistic, (cell,). A difference has the effects of both figures."""
    base = statistic.of or statistic
    return effects_in(effects, cells, base.name, base.variable)


UNDO = (
    "undo the change, or run the job in a new workspace, which spends ε = {epsilon} under {adjacency} in addition to "
    "this release"
)
FREE = ("presentation", "tables")
"""Keys of a job that may change after its release."""
REMEDY = "restore it from a copy, or run the same `dpdist run` command again, which makes the folder again"
"""Remedy for a public folder that is incomplete."""
PROOF = "proof.json"
"""File of the proof record, in the folder `released/`."""
MOST_MODELS = 1000
"""Number of models of strata that a release keeps, so that memory does not grow with strata."""
STRATA, LABEL = '"strata": {', re.compile(r'\s*(,?)\s*("(?:[^"\\]|\\.)*")\s*:\s*')
"""Where strata begin in the file of a set, and what is before the parameters of each: a comma after others, its label."""
LONG = 10_000
"""Smallest number of entries of a list that is kept as an array."""
MOST_ENTRIES = 4_000_000
"""Entries of memberships of cells that a release keeps."""
DISTRIBUTIONS = "distributions.parquet"
"""File of the reference's distributions by cell, for the family of scores."""


@dataclass(frozen=True, eq=False)
class Parameters(Mapping[str, Mapping[str, Any]]):
    """A set's parameters by stratum, kept as JSON texts, which take a fifth of the memory and are never Confidential."""

    texts: Mapping[str, str]
    _last: dict[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, strata: Mapping[str, Mapping[str, Any]]) -> Parameters:
        return cls({label: json.dumps(theta, ensure_ascii=False, allow_nan=False) for label, theta in strata.items()})

    def __getitem__(self, label: str) -> Mapping[str, Any]:
        if (theta := self._last.get(label)) is None:
            theta = {name: _compact(value) for name, value in json.loads(self.texts[label]).items()}
            self._last.clear()
            self._last[label] = theta
        return theta

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


def _compact(value: Any) -> Any:
    """The value with arrays in place of long lists of numbers, which take a quarter of the memory."""
    if isinstance(value, dict):
        return {name: _compact(part) for name, part in value.items()}
    if not isinstance(value, list) or len(value) < LONG or not _all_floats(value):
        return value
    with suppress(ValueError):  # lists of different lengths
        value = np.array(value)
    return value


def _all_floats(values: list[Any]) -> bool:
    return all(_all_floats(value) if isinstance(value, list) else isinstance(value, float) for value in values)


@dataclass(frozen=True)
class ReleasedObject:
    """Released parameters of every synthetic set and stratum, with the public facts that they depend on.

    `sets[k][label]` holds the parameters θ of set k + 1 in the stratum `label`, as JSON. `crosstab.strata` is empty if the
    fit was pooled over strata.
    """

    job: Job
    promise: Mapping[str, Any]
    crosstab: Crosstab
    sets: tuple[Mapping[str, Mapping[str, Any]], ...]
    seed: Key
    points: pa.Table | None = None
    """Points of a release that passes some on to the next one."""
    facts: Mapping[str, Facts] = field(default_factory=dict)
    """Public summaries of the reference for every stratum, where the model uses them."""
    donors: Mapping[str, Donors] = field(default_factory=dict)
    """Public records of the reference, by stratum. Synthetic records of tables copy their values from these."""
    history: History = field(default_factory=dict)
    """Totals from which the next release learns, by stratum: of earlier periods since the reference, and of this one."""
    proof: Mapping[str, Any] | None = None
    """The proof record (privacy/proof.py); None of releases of 0.1.1 and earlier, and of simulated ones."""

    def __post_init__(self) -> None:
        refuse_confidential((self.promise, [of_set for of_set in self.sets if not isinstance(of_set, Parameters)]))

    @property
    def target(self) -> float:
        """Δ*, the bound that a set's fit had to meet.

        It follows from the job. It is infinite if the promise gives no guarantee.
        """
        if self.promise["guarantee"] == "none":
            return float("inf")
        return bound_target(record_epsilon(self.job, self.job.epsilon_per_set), self.job.budget.adjacency)

    @cached_property
    def design_effects(self) -> tuple[DesignEffect, ...]:
        """Public design effects. A figure takes the first of them that fits it."""
        return design_effects(self.job, self.promise)

    @cached_property
    def stage(self) -> Stage:
        """The sample's design, for variances of published figures: records drawn with replacement within design strata.

        If records are left out and the number of drawn ones is secret, the sample's size is taken for Poisson, which no
        variance exceeds.
        """
        crosstab, lonely = self.crosstab, self.job.survey.lonely_record
        if self.job.is_domain and not self.job.drawn_is_public:
            return Stage.of(np.full(len(crosstab.sampled_records), np.inf), lonely=lonely)
        return Stage.of(stratum_sizes(crosstab), lonely=lonely, elsewhere=crosstab.sampled_elsewhere)

    @property
    def texts(self) -> list[Mapping[str, str]]:
        """Every set's parameters as JSON texts by stratum."""
        return [of_set.texts if isinstance(of_set, Parameters) else Parameters.of(of_set).texts for of_set in self.sets]

    @property
    def without_records(self) -> ReleasedObject:
        """The release without what its reference and earlier releases add, which figures of tables do not need."""
        return replace(self, points=None, facts={}, donors={}, history={})

    def with_texts(self, texts: Sequence[Mapping[str, str]]) -> ReleasedObject:
        """The release with other texts for parameters."""
        return replace(self, sets=tuple(map(Parameters, texts)))

    def model(self, stratum: int) -> StratumModel:
        """The model that was fitted to a stratum, with the prior of that fit. The last `MOST_MODELS` are kept."""
        if stratum not in self._models:
            if len(self._models) == MOST_MODELS:
                del self._models[next(iter(self._models))]
            self._models[stratum] = self._built(stratum)
        return self._models[stratum]

    def cells(self, table: Table) -> Cells:
        """The cells of a table over the crosstab. Those of large tables are kept only until others are asked for."""
        key = json.dumps([list(table.by), table.margins, table.universe], default=list)
        if key not in self._cells:
            cells = table.cells(self.crosstab)
            room = MOST_ENTRIES - cells.membership.nnz
            while self._cells and sum(cells_of_table.membership.nnz for cells_of_table in self._cells.values()) > room:
                self._columns.pop(id(self._cells.pop(next(iter(self._cells)))), None)
            self._cells[key] = cells
        return self._cells[key]

    def rows_of_cells(self, table: Table) -> scipy.sparse.csc_array:
        """The membership matrix of a table's cells in compressed columns, (cell, crosstab row)."""
        cells = self.cells(table)
        if id(cells) not in self._columns:
            self._columns[id(cells)] = scipy.sparse.csc_array(cells.membership)
        return self._columns[id(cells)]

    @cached_property
    def _cells(self) -> dict[str, Cells]:
        return {}

    @cached_property
    def _columns(self) -> dict[int, scipy.sparse.csc_array]:
        return {}

    @cached_property
    def _models(self) -> dict[int, StratumModel]:
        return {}

    def _built(self, stratum: int) -> StratumModel:
        label = self.crosstab.stratum_labels[stratum]
        proper = self.sets[0][label]["prior"] == "proper"
        model = builder_of(self.job).build(self.job, self.crosstab, self.crosstab.rows_of(stratum), proper)
        if supports(model, "with_donors") and label in self.donors:
            return model.with_donors(replace(self.donors[label], history=self.history.get(label, ())[:-1]))
        return model.within(self.facts[label]) if supports(model, "weights_corrected") else model

    def theta(self, model: StratumModel, stratum: int, set: int) -> Draws:
        return model.recall(self.sets[set][self.crosstab.stratum_labels[stratum]])


def derive(released: ReleasedObject, job: Job) -> ReleasedObject:
    """The release with another job's presentation and tables, which cost nothing to change.

    Raises `JobError` if any other key differs, if a table cannot be made from the release, or if a table that gates
    measured is changed or missing. The error states the cost of a new release of the job.
    """
    before, after = released.job.public, job.public
    if "publish" not in job.model_fields_set:
        after = after | {"publish": before["publish"]}
    if (share := _histogram_share(released.job)) is not None and share == _histogram_share(job):
        # A default share of the histograms is written as the same fraction of either budget: not a change.
        after = after | {"reference": before["reference"]}
    changed = [name for name in (before | after) if after.get(name) != before.get(name) and name not in FREE]
    cost = UNDO.format(epsilon=budget_text(job.budget.epsilon), adjacency=job.budget.adjacency)
    problems = [
        Problem(name, "not as it was released", "changes only in presentation and tables", cost) for name in changed
    ]
    if fault := _underivable(released.job, job):
        allowed = f"tables by {', '.join(released.job.categories) or 'nothing'}, after the released ones"
        problems.append(Problem("tables", fault, allowed, cost))
    if gated := _regated(released, job):
        allowed = "gated tables as they were measured; other tables may be added, but are then not gated"
        problems.append(
            Problem("tables", f"a changed or missing table {', '.join(gated)}, which the gates name", allowed, cost)
        )
    if problems:
        raise JobError("of what was released", problems)
    restated = Job.model_validate(before | {name: after[name] for name in FREE})
    return replace(released, job=restated.model_copy(update={"runtime": job.runtime}))


def _histogram_share(job: Job) -> Fraction | None:
    """The part of the budget that histograms alone take; None with another reference."""
    return job.epsilon.histograms / job.budget.epsilon if job.on_histograms else None


def _underivable(released: Job, job: Job) -> str:
    """The reason why the job's tables do not follow from released figures; empty if they do.

    Released parameters and sums of cells define every combination of the crosstab's columns. Separately noised figures
    define only themselves. The order of columns must stay, because it numbers the cells.
    """
    if job.tables == released.tables:
        return ""
    if released.mechanism.sets == "none":
        return f"other tables, although each figure of '{released.mechanism}' has its own noise"
    if (job.categories, job.cell_columns) != (released.categories, released.cell_columns):
        return f"columns {', '.join(job.categories) or 'none'}, in this order"
    return ""


def _regated(released: ReleasedObject, job: Job) -> list[str]:
    """Names of tables that the gates measured, and that the job lacks or defines differently."""
    before, after = ({table.name: table for table in compared.tables} for compared in (released.job, job))
    return [
        name for name in released.promise.get("acceptance", {}).get("tables", []) if after.get(name) != before.get(name)
    ]


def with_totals(released: ReleasedObject) -> ReleasedObject:
    """The release with the totals from which the next one learns, if its mechanism states them.

    Before this call, `donors` hold totals of earlier periods only.
    """
    if not released.job.mechanism.uses("reference.release"):
        return released
    history = dict[str, tuple[PeriodTotals, ...]]()
    for stratum, label in enumerate(released.crosstab.stratum_labels):
        model = builder_of(released.job).build(released.job, released.crosstab, released.crosstab.rows_of(stratum))
        if label in released.donors:
            model = model.with_donors(released.donors[label])
        if periods := model.history(released.theta(model, stratum, 0)):
            history[label] = periods
    return replace(released, history=history)


def of_run(released: ReleasedObject, date: str | None, metered: bool) -> ReleasedObject:
    """The release, with the version that protected it, the run's starting date, and a ledger's mark, if any.

    A later version that publishes the release again keeps these entries.
    """
    entries = {
        "protected_by": version_of("dpdist"),
        **({"date": date} if date is not None else {}),
        **({"metered": True} if metered else {}),
    }
    return replace(released, promise={**released.promise, **entries})


def public_frame(job: Job, crosstab: Crosstab, sets: tuple[Mapping[str, Mapping[str, Any]], ...]) -> Crosstab:
    """The crosstab in its published form. If only noisy sums give sizes of cells, the crosstab has these noisy sizes.

    Numbers of drawn records are published if they are public; few records left out count as the job's minimum.
    """
    crosstab = crosstab.least_left_out(job.least_count) if job.drawn_is_public else replace(crosstab, sampled=None)
    if not job.sizes_in_sums:
        return crosstab
    model = builder_of(job).build(job, crosstab, slice(0, len(crosstab)))
    return replace(crosstab, count=model.sizes_of_rows(sets[0][POOLED]))


def write_released(folder: Path, released: ReleasedObject) -> None:
    """Writes the folder `released/`: job, promise, proof record, crosstab, a file for each set, the seed of publication."""
    folder.mkdir(parents=True)
    write_json(folder / "job.json", released.job.public)
    write_json(folder / "promise.json", dict(released.promise))
    if released.proof is not None:
        write_json(folder / PROOF, dict(released.proof))
    pq.write_table(crosstab_table(released.crosstab), folder / "frame.parquet")
    for number, texts in enumerate(released.texts, start=1):
        _write_set(folder / f"set-{number}.json", {"set": number, "family": released.job.family}, texts)
    if released.facts:
        pq.write_table(facts_table(released.facts), folder / DISTRIBUTIONS, compression="zstd")
    if any(map(len, released.donors.values())):
        table = donors_table(released.donors, released.job.outcomes)
        pq.write_table(table, folder / DONORS, compression="zstd")
    if released.history:
        write_history(folder / HISTORY, released.history)
    if released.points is not None:
        pq.write_table(released.points, folder / REFERENCE_FILE)
    write_text(folder / "seed", released.seed.hex() + "\n")


def _write_set(path: Path, facts: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Writes facts and "strata", a line for each stratum."""
    with replaced(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write("{\n")
        file.writelines(f"  {json.dumps(name)}: {json.dumps(value)},\n" for name, value in facts.items())
        file.write(f"  {STRATA}")
        for number, (label, text) in enumerate(texts.items()):
            file.write(f"{',' if number else ''}\n    {json.dumps(label, ensure_ascii=False)}: {text}")
        file.write("\n  }\n}\n")


def _read_set(path: Path) -> Parameters:
    """The inverse of `_write_set`, stratum by stratum: all strata as objects take six times the memory of their texts."""
    text, decoder, texts = path.read_text(encoding="utf-8"), json.JSONDecoder(), dict[str, str]()

    place = text.index(STRATA) + len(STRATA)
    while (label := LABEL.match(text, place)) is not None:
        if bool(texts) != bool(label[1]) or (name := json.loads(label[2])) in texts:
            raise ValueError("strata that are not apart")
        theta, place = decoder.raw_decode(text, label.end())
        texts[name] = json.dumps(theta, ensure_ascii=False, allow_nan=False)
    if "".join(text[place:].split()) != "}}":
        raise ValueError("strata without an end")
    return Parameters(texts)


def read_released(folder: Path) -> ReleasedObject:
    """The inverse of `write_released`. Raises `WorkspaceError` if there is no complete release.

    The error names the damaged file; for parameters, seed and reference facts it names only the folder. If a manifest
    lies beside the folder, the files must match it.
    """
    public, part = folder.parent, folder.name
    if (public / MANIFEST).exists():
        refuse_changed(public, part)
    try:
        job, promise = read_job(public, f"{part}/job.json"), read_object(public, f"{part}/promise.json")
        if isinstance(job.mechanism, Former):
            raise WorkspaceError(
                str(public), f"its mechanism is '{job.mechanism}', which this version does not have", AGAIN
            )
        _check_promise(f"{part}/promise.json", promise)
        proof = read_object(public, f"{part}/{PROOF}") if (folder / PROOF).exists() else None
        crosstab = read_crosstab(public, f"{part}/frame.parquet", job)
        points = read_points(public, f"{part}/{REFERENCE_FILE}", job) if (folder / REFERENCE_FILE).exists() else None
        sizes = len(job.cell_columns), len(job.outcomes)
        history = read_history(public, f"{part}/{HISTORY}", *sizes) if (folder / HISTORY).exists() else {}
    except DamagedFile as error:
        raise _unfit(public, error) from None
    try:
        sets = tuple(_read_set(folder / f"set-{number}.json") for number in range(1, job.synthetic_sets + 1))
        seed = Key.read(folder / "seed")
        facts = facts_from_table(pq.read_table(folder / DISTRIBUTIONS)) if family_facts(job).on_reference else {}
        path = folder / DONORS
        donors = donors_from_table(pq.read_table(path), job.outcomes, job.microdata.columns) if path.exists() else {}
        for label, periods in history.items() if not path.exists() else ():
            if len(periods) > 1:  # a chain without a reference
                donors[label] = Donors.none(len(job.outcomes))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise WorkspaceError(str(folder), f"an incomplete release ({type(error).__name__})", REMEDY) from None
    return ReleasedObject(job, promise, crosstab, sets, seed, points, facts, donors, history, proof)


def refuse_changed(public: Path, part: str) -> None:
    """Raises `WorkspaceError` unless the files of a part of a public folder match its manifest."""
    try:
        check_files(public, part)
    except DamagedFile as error:
        raise _unfit(public, error) from None


def _unfit(public: Path, error: DamagedFile) -> WorkspaceError:
    return WorkspaceError(str(public), f"{error}, allowed: {error.allowed}", error.remedy or REMEDY)


def _check_promise(name: str, promise: Mapping[str, Any]) -> None:
    """Raises `DamagedFile` unless the promise has the entries that `privacy.claims.promised` writes."""
    allowed = "a guarantee as it was released"
    if promise.get("guarantee") not in get_args(GuaranteeName):
        raise DamagedFile(name, "an unknown guarantee", f"one of {', '.join(get_args(GuaranteeName))}")
    for key in ("adjacency", "epsilon", "delta"):
        if key not in promise or not isinstance(promise[key], str | None):
            raise DamagedFile(name, f"no {key}", allowed)
    for key, kind in {"composition": str, "assumptions": list, "sampler": dict}.items():
        if not isinstance(promise.get(key), kind):
            raise DamagedFile(name, f"no {key}", allowed)
    if not isinstance(promise.get("reference", {}), dict):
        raise DamagedFile(name, "no valid reference", allowed)
    try:
        effects_in_promise(promise)
    except (ValueError, TypeError):
        raise DamagedFile(name, "no valid design effects", allowed) from None


R = TypeVar("R")
Work = Callable[[ReleasedObject, range], R]
"""What is done with a batch (`Crosstab.batches`): it reads the release's parameters of these strata only.

A batch's result is small, or in proportion to its records. The driver takes results in the order of batches. So the same
bytes follow, whoever does the work.
"""


class ByBatch(Protocol):
    """Does some work for each batch, here or on an executor, and gives the results in the order of the batches."""

    def __call__(self, work: Work[R], released: ReleasedObject, batches: Sequence[range]) -> Iterator[R]: ...


def run_here(work: Work[R], released: ReleasedObject, batches: Sequence[range]) -> Iterator[R]:
    """Does the work in this process, one batch after another."""
    return (work(released, batch) for batch in batches)
