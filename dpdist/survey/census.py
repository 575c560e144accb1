"""Reads a survey file in checked batches: counts records in every crosstab row, then sorts records into that order."""

from __future__ import annotations

import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from unicodedata import category, normalize

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.confidential.records import Records
from dpdist.core.errors import DataError, Problem
from dpdist.core.records import Codes, Crosstab, Floats, Ints, Level, SmallCounts
from dpdist.estimation.direct import ReplicateSums, SamplingDesign, replication
from dpdist.estimation.estimators import crossed_products, replicate_df, summable
from dpdist.job import Job, family_facts
from dpdist.survey.batch import Findings, Mask
from dpdist.survey.checks import CheckedBatch, check, recoded
from dpdist.survey.csv_file import no_header
from dpdist.survey.schema import (
    causes,
    check_replicates,
    check_schema,
    combined,
    declared_missing,
    needed_columns,
    replicates,
)
from dpdist.survey.source import Source

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?")
LEAST_OF_WEIGHTS = 0.5
"""Smallest mean sum of replicate weights, in sums of the weight: factors have one of another size."""
INVISIBLE = ("Cc", "Cf")
"""Unicode categories of invisible characters: control and format."""


def folded(name: str) -> str:
    """The common form of all names that differ in spelling alone; empty for a name without visible characters.

    The form ignores blanks at the ends, repeated blanks, case, Unicode form, invisible characters, and how a number is
    written.
    """
    if name.isascii() and name.isdigit():
        return name.lstrip("0") or "0"
    text = normalize("NFKC", normalize("NFKC", name).casefold())
    text = " ".join("".join(c for c in text if c.isspace() or category(c) not in INVISIBLE).split())
    return str(Fraction(text)) if NUMBER.fullmatch(text) else text


class UnitLimit:
    """Drops the records of a unit beyond its maximum, over the batches of one pass; it keeps every unit's name and number.

    Whether a record is dropped depends only on records of its own unit.
    """

    def __init__(self, job: Job, findings: Findings):
        self.declared, self.findings = job.privacy_unit, findings
        self.counts = Counter[str]()
        self.spelled = dict[str, str]()

    def __call__(self, checked: CheckedBatch) -> CheckedBatch:
        """Returns the batch without records beyond the maximum.

        They count as problems, or as left out if the job says so.
        """
        if self.declared is None or checked.unit is None or not len(checked.row):
            return checked
        code, names = pd.factorize(np.array(checked.unit.to_pylist(), dtype=object))
        folds = [folded(name) for name in names]
        checked, code = self._without(checked, code, np.array([not fold for fold in folds]), MISSING)
        again = [self.spelled.setdefault(fold, name) != name for fold, name in zip(folds, names, strict=True)]
        checked, code = self._without(checked, code, np.array(again), AMBIGUOUS)
        before = np.array([self.counts[name] for name in names], dtype=np.int64)
        beyond = pd.Series(code).groupby(code).cumcount().to_numpy() + before[code] >= self.declared.most
        self.counts.update(dict(zip(names, np.bincount(code, minlength=len(names)).tolist(), strict=True)))
        if not beyond.any():
            return checked
        column, most = self.declared.column, self.declared.most
        if self.declared.beyond == "truncate":
            self.findings.rule(f"{column}: beyond the first {most} records of a unit, left out", int(beyond.sum()))
        else:
            remedy = "raise privacy_unit.most to a number that is public, or state privacy_unit.beyond: truncate"
            fault, allowed = f"more than {most} records of one {column}", f"at most {most} records of each"
            self.findings.add(column, fault, allowed, remedy, checked.row[beyond], [])
        return checked.take(~beyond)

    def _without(
        self, checked: CheckedBatch, code: Ints, wrong: Mask, problem: tuple[str, str, str]
    ) -> tuple[CheckedBatch, Ints]:
        """The batch without records whose names are wrong.

        `code` numbers each record's name, and `wrong` has the shape (name,).
        """
        bad = wrong[code]
        if not bad.any():
            return checked, code
        assert self.declared is not None
        self.findings.add(self.declared.column, *problem, checked.row[bad], [])
        return checked.take(~bad), code[~bad]


MISSING = ("missing values", "a unit for every record", "complete the column")
AMBIGUOUS = (
    "names of units that differ only in spelling",
    "one spelling of every name: blanks, case, leading zeros and Unicode form do not distinguish units",
    "spell each unit's name in one way, and give different units names that differ in more than spelling",
)


class UnitsMet:
    """Counts distinct units in every published sample count, up to the job's minimum, so that few names are stored."""

    def __init__(self, job: Job):
        self.least = job.least_count
        self.names = dict[int, set[str]]()
        self.full = set[int]()

    def __call__(self, key: Ints, names: list[str]) -> None:
        """Adds the records of a batch: `key` (record,) is the number of the sample count, `names` has the units' names."""
        pairs = pd.DataFrame({"key": key, "name": names}).drop_duplicates()
        pairs = pairs[~pairs["key"].isin(self.full)]
        for number, name in zip(pairs["key"].tolist(), pairs["name"].tolist(), strict=True):
            names_met = self.names.setdefault(number, set())
            if number not in self.full:
                names_met.add(name)
            if len(names_met) >= self.least:
                self.full.add(number)

    @property
    def small(self) -> SmallCounts:
        sizes = np.array([len(names) for names in self.names.values()], dtype=np.int64)
        return SmallCounts(int((sizes < self.least).sum()), int((sizes == 1).sum()), len(sizes))


Tick = Callable[[int], None]


def changed_while_read(source: Source) -> DataError:
    return DataError.of(
        source.name, "file", "it changed while it was read", "a file that does not change during the run", "run again"
    )


def checked_batches(
    job: Job, source: Source, findings: Findings | None = None, tick: Tick = lambda rows: None
) -> Iterator[CheckedBatch]:
    """Yields the records that belong to the release as typed batches; problems of the file are added to `findings`."""
    findings = Findings() if findings is None else findings
    first = 0
    columns = list(source.columns)
    if problems := check_replicates(job, columns):
        raise DataError(source.name, problems)
    needed = needed_columns(job, columns)
    twice = [name for name in needed if columns.count(name) > 1]
    if twice:
        remedy = "rename or delete one"
        raise DataError(source.name, [Problem(n, "appears twice in the file", "each column once", remedy) for n in twice])
    missing = [name for name in needed if name not in columns]
    if source.text_only and len(missing) == len(needed) and not causes(columns, needed):
        fault, remedy = "its first line names none of the job's columns", "give a header line, names separated by commas"
        if remark := no_header(columns[0]) if columns else None:
            fault, remedy = f"its first line is {remark}", "delete this line, so that the line of names is the first"
        raise DataError.of(source.name, "file", fault, ", ".join(needed), remedy)
    if missing:
        empty = pa.schema([(name, pa.string()) for name in source.columns])
        raise DataError(source.name, check_schema(job, empty, text_only=True))
    bounded = UnitLimit(job, findings)
    for stored in source.batches(needed):
        batch = recoded(stored, job.recode, source.text_only)
        if first == 0 and (problems := check_schema(job, batch.schema, source.text_only)):
            raise DataError(source.name, problems)
        if first == 0 and (problems := declared_missing(job, batch.schema, source.means_missing)):
            raise DataError(source.name, problems)
        checked = bounded(check(job, batch, first, findings, source.text_only))
        first += batch.num_rows
        tick(batch.num_rows)
        if len(checked.row):
            yield checked


def _of_all_records(job: Job, findings: Findings) -> Iterator[Problem]:
    """Problems of PSUs and replicate weights that no single record shows."""
    if job.survey.psu is not None and not findings.problems:
        spelled = Counter((*unit[:-1], folded(str(unit[-1]))) for unit in findings.units)
        if any(number > 1 for number in spelled.values()):
            fault = "names of PSUs of one design stratum that differ only in spelling"
            allowed = "one spelling of every name: blanks, case, leading zeros and Unicode form do not distinguish PSUs"
            yield Problem(job.survey.psu, fault, allowed, "spell each PSU's name in one way")
    total, *replicate_sums = np.atleast_1d(findings.weight_sums).tolist()
    if replicate_sums and not LEAST_OF_WEIGHTS < np.mean(replicate_sums) / max(total, 1e-300) < 1.0 / LEAST_OF_WEIGHTS:
        fault = "columns that are no replicate weights of this weight: their sums are far from its sum"
        allowed = "replicate weights that sum to about what the weight sums to"
        remedy = "if they are factors, multiply the weight by each; otherwise name the weight that they belong to"
        yield Problem("survey.replicate_weights", fault, allowed, remedy)


def strides(levels: Mapping[str, tuple[Level, ...]]) -> dict[str, int]:
    strides: dict[str, int] = {}
    stride = 1
    for name in reversed(list(levels)):
        strides[name] = stride
        stride *= len(levels[name])
    return strides


def crosstab_key(codes: Mapping[str, Codes], levels: Mapping[str, tuple[Level, ...]], size: int) -> Ints:
    """One number per record or row for its combination of categories, sorted as the crosstab; 0 without categories."""
    key = np.zeros(size, dtype=np.int64)
    for name, stride in strides(levels).items():
        key += codes[name].astype(np.int64) * stride
    return key


TALLIES = 64
"""Number of batches whose tallies are merged at once."""
SAME_WEIGHT = 1e-6
"""Relative difference up to which weights count as equal: files round them."""


@dataclass(frozen=True)
class Populations:
    """Population sizes from the columns that survey.fpc names, for finite population corrections.

    `strata` has the units of every design stratum (stratum,). `psus` is a table of the sampled PSUs. Its columns
    are `stratum`; `psu`, the PSU's name; `second`, the number of records in the PSU's population; and `records`, the number
    of its records in the sample, with those outside the universe.
    """

    strata: Floats
    psus: pd.DataFrame | None


@dataclass(frozen=True)
class Census:
    """Results of one pass over the file: the crosstab (public), the effect of rules and the PSUs (confidential)."""

    crosstab: Crosstab
    removed: dict[str, int]
    rows: int
    psu_levels: tuple[str, ...]
    psus: Ints
    """PSUs per design stratum, with those without a record of the universe; empty if none are declared."""
    psus_elsewhere: int
    """PSUs in design strata without a record of the universe."""
    constant: tuple[str, ...]
    """Strata in which an outcome or the weight (under a lognormal law, its logarithm) does not vary."""
    populations: Populations | None = None
    single: Mapping[str, Floats] = field(default_factory=dict)
    """Confidential: of every outcome, as y0, y1, …, and of the weight, as w, the one value in each crosstab row, (row,).

    It is NaN where values vary. Under a lognormal law it is the value's logarithm.
    """
    small: SmallCounts | None = None
    """Number of published sample counts with few privacy units; None if a record is the unit, or no count is published."""
    kept_by_bounds: Mapping[str, float] = field(default_factory=dict)
    """Confidential: what is left of the sum of weights, and of every outcome's weighted sum, after clipping of this column
    alone, as a share; by the columns that the job clips. NaN where the sum in the file is 0."""


def take_census(job: Job, source: Source, tick: Tick = lambda rows: None) -> Census:
    """Checks every record and counts the crosstab. Raises `DataError` with every problem; writes nothing."""
    columns = job.categories
    levels: dict[str, tuple[Level, ...]] = {name: job.columns[name].levels or () for name in columns}
    findings, psus, tallies, sizes = Findings(), set[str](), list[pd.DataFrame](), list[pd.DataFrame]()
    in_file, in_bounds = dict[str, float](), dict[str, float]()
    scale, units = np.log if family_facts(job).logs else np.asarray, UnitsMet(job)
    for checked in checked_batches(job, source, findings, tick):
        scaled = {f"y{j}": scale(outcome) for j, outcome in enumerate(checked.outcomes)} | {"w": scale(checked.weight)}
        key = crosstab_key(checked.codes, levels, len(checked.row))
        tallies.append(_tally(key, scaled))
        if len(tallies) == TALLIES:  # so that memory does not grow with the file
            tallies = [_added(pd.concat(tallies).groupby(level=0))]
        for name, (before, after) in _clipped_sums(job, checked).items():
            in_file[name], in_bounds[name] = in_file.get(name, 0.0) + before, in_bounds.get(name, 0.0) + after
        if checked.unit is not None and job.public_counts is not None:
            by = {name: levels[name] for name in job.public_counts}
            units(crosstab_key(checked.codes, by, len(key)), checked.unit.to_pylist())
        if checked.psu is not None:
            psus |= set(checked.psu.unique().to_pylist())
        if job.survey.fpc:
            unit = "" if checked.psu is None else checked.psu.to_pylist()
            sizes_stated = pd.DataFrame(checked.population, columns=["first", "second"][: len(job.survey.fpc)])
            sizes_stated = sizes_stated.assign(key=key, psu=unit, records=1)
            sizes.append(sizes_stated.groupby([name for name in sizes_stated if name != "records"], as_index=False).sum())
    for problem in _of_all_records(job, findings):
        findings.of_file(problem)
    if findings.problems:
        raise DataError(source.name, combined(findings.placed(source.lines), replicates(job, source.columns)))
    if not tallies:
        fault = "no record" if findings.records == 0 else "no record is left after the universe and the stated rules"
        raise DataError.of(source.name, "file", fault, "at least one record", "check the file and the job's universe")
    tally = _added(pd.concat(tallies).groupby(level=0))
    keys = tally.index.to_numpy()
    stride = strides(levels)
    codes = {name: ((keys // stride[name]) % len(levels[name])).astype(np.int32) for name in columns}
    crosstab = Crosstab(codes, levels, tally["records"].to_numpy(dtype=np.int64), job.strata, job.survey.design_strata)
    crosstab = replace(crosstab, sampled=_sampled(crosstab, findings.left_out))
    _one_weight(job, source, crosstab, tally)
    extent = _added(tally.groupby(crosstab.stratum))
    varying = [extent[f"{name}_low"] < extent[f"{name}_high"] for name in scaled]
    flat = ~np.logical_and.reduce(varying)
    constant = tuple(label for label, same in zip(crosstab.stratum_labels, flat, strict=True) if same)
    populations = _populations(job, source, crosstab, keys, sizes, findings.units) if sizes else None
    names, number, elsewhere = tuple[str, ...](), np.empty(0, dtype=np.int64), 0
    if psus:
        names, number = tuple(sorted(psus)), _psus(crosstab, findings.units)
        elsewhere = len(findings.units) - int(number.sum())
    small = units.small if job.privacy_unit is not None and job.public_counts is not None else None
    single = {
        name: np.where(tally[f"{name}_low"] < tally[f"{name}_high"], np.nan, tally[f"{name}_low"]).astype(np.float64)
        for name in scaled
    }
    within = {name: in_bounds[name] / total if total else np.nan for name, total in in_file.items()}
    return Census(
        crosstab, findings.removed, findings.records, names, number, elsewhere, constant, populations, single, small, within
    )


def _clipped_sums(job: Job, checked: CheckedBatch) -> dict[str, tuple[float, float]]:
    """Weighted sums of a batch before and after clipping, by clipped column."""
    weight = checked.weight_in_file
    with np.errstate(invalid="ignore", over="ignore"):  # values that the checks refuse
        sums = {
            name: (float(weight @ checked.outcome_in_file(j)), float(weight @ checked.outcomes[j]))
            for j, name in enumerate(job.outcomes)
        }
    if job.survey.weight is not None:
        sums[job.survey.weight] = float(weight.sum()), float(checked.weight.sum())
    return {name: sums[name] for name in job.clipped_columns if name in sums}


def _one_weight(job: Job, source: Source, crosstab: Crosstab, tally: pd.DataFrame) -> None:
    """Raises `DataError` if weights vary where the job says that they do not, or are not those that it declares."""
    columns, public = job.survey.one_weight_in, job.survey.design_weights
    if not columns:
        return
    if public is not None:
        weight = public.of(crosstab)
        beyond = np.maximum(tally["w_high"].to_numpy() - weight, weight - tally["w_low"].to_numpy())
        if (beyond > SAME_WEIGHT * weight).any():
            fault = "weights of records differ from those that survey.design_weights declares"
            remedy = "use the weights from the survey's design documents, or leave survey.design_weights out"
            raise DataError.of(source.name, str(job.survey.weight), fault, "the declared weights", remedy)
    extent = _added(tally.groupby([crosstab.codes[name] for name in columns]))
    if (extent["w_high"] - extent["w_low"] > SAME_WEIGHT * extent["w_high"].abs()).any():
        fault = f"weights vary within a combination of {', '.join(columns)}"
        remedy = "name the columns of the design under survey.weights_constant_in or design_weights, or leave it out"
        raise DataError.of(source.name, str(job.survey.weight), fault, "one weight in each combination", remedy)


def _sampled(crosstab: Crosstab, left_out: Mapping[tuple[int, ...], int]) -> dict[tuple[Level, ...], int] | None:
    """Numbers of drawn records by design stratum; None if the universe and the rules leave no drawn record out."""
    if not left_out:
        return None
    levels = [crosstab.levels[name] for name in crosstab.design_strata]
    sampled = dict(zip(crosstab.group(crosstab.design_strata)[1], crosstab.sampled_records.tolist(), strict=True))
    for codes, number in left_out.items():
        label = tuple(of[code] for of, code in zip(levels, codes, strict=True))
        sampled[label] = sampled.get(label, 0) + number
    return sampled


def _stratum_of(crosstab: Crosstab) -> dict[tuple[int | str, ...], int]:
    """The number of every design stratum, by the codes of its levels."""
    codes = crosstab.codes_of(crosstab.design_strata)
    return dict(zip(map(tuple, codes.tolist()), crosstab.design_stratum.tolist(), strict=True))


def _psus(crosstab: Crosstab, units: Mapping[tuple[int | str, ...], int]) -> Ints:
    """Number of PSUs in every design stratum, (stratum,), including PSUs without a record in the universe."""
    stratum = _stratum_of(crosstab)
    stratum_of_unit = np.array([stratum[unit[:-1]] for unit in units if unit[:-1] in stratum], dtype=np.int64)
    return np.bincount(stratum_of_unit, minlength=int(crosstab.design_stratum.max()) + 1)


def _populations(
    job: Job,
    source: Source,
    crosstab: Crosstab,
    keys: Ints,
    sizes: list[pd.DataFrame],
    units: Mapping[tuple[int | str, ...], int],
) -> Populations:
    """Population sizes by design stratum and PSU. Raises `DataError` if records of one stratum or PSU state several."""
    populations = pd.concat(sizes)
    populations["stratum"] = crosstab.design_stratum[np.searchsorted(keys, populations["key"])]
    problems = []
    remedy = "correct the column: it holds the size of the population from which the record's stratum or PSU was sampled"
    for column, name, by in zip(("first", "second"), job.survey.fpc, (["stratum"], ["stratum", "psu"]), strict=False):
        several = int((populations.groupby(by)[column].nunique() > 1).sum())
        if several:
            which = "design stratum" if column == "first" else "PSU"
            problems.append(Problem(name, f"different sizes in one {which}", f"one size for each {which}", remedy, several))
    if problems:
        raise DataError(source.name, problems)
    strata = populations.groupby("stratum")["first"].first().to_numpy(dtype=float)
    if len(job.survey.fpc) == 1:
        return Populations(strata, None)
    psus = populations.groupby(["stratum", "psu"], as_index=False).agg(second=("second", "first"))
    stratum = _stratum_of(crosstab)
    number_of = {(stratum[unit[:-1]], unit[-1]): number for unit, number in units.items() if unit[:-1] in stratum}
    records = [number_of[unit] for unit in zip(psus["stratum"].tolist(), psus["psu"].tolist(), strict=True)]
    return Populations(strata, psus.assign(records=records))


def _tally(key: Ints, scaled: Mapping[str, Floats]) -> pd.DataFrame:
    row, keys = pd.factorize(key, sort=True)
    ranges: dict[str, Any] = {"records": np.bincount(row, minlength=len(keys))}
    for name, values in scaled.items():
        for end, start, extreme in (("low", np.inf, np.minimum), ("high", -np.inf, np.maximum)):
            extreme.at(ends := np.full(len(keys), start), row, values)
            ranges[f"{name}_{end}"] = ends
    return pd.DataFrame(ranges, index=keys)


def _added(groups: Any) -> pd.DataFrame:
    hows = {"records": "sum", "low": "min", "high": "max"}
    tally: pd.DataFrame = groups.agg({name: hows[name.rpartition("_")[2]] for name in groups.obj})
    return tally


def design_of(job: Job, census: Census) -> SamplingDesign:
    """The facts of the design that the crosstab does not have: population sizes by stratum and by (stratum, PSU code)."""
    populations, none = census.populations, np.empty(0)
    second = records = None
    if populations is not None and populations.psus is not None:
        code = pd.Index(census.psu_levels).get_indexer(pd.Index(populations.psus["psu"]))
        psus = populations.psus.assign(psu=code).set_index(["stratum", "psu"])
        second, records = psus["second"], psus["records"]
    lonely = job.survey.lonely_record if job.sizes_secret else job.survey.lonely_psu
    strata, number = none if populations is None else populations.strata, census.psus.astype(np.float64)
    return SamplingDesign(lonely, strata, second, number, census.psus_elsewhere, records)


# It is a counting sort: the census has counted the records of every crosstab row, so each place is known.
def place(
    job: Job, source: Source, census: Census, scratch: Path, tick: Tick = lambda rows: None, weights_clipped: bool = True
) -> Records:
    """Records of the whole file in crosstab order, as memory maps under `scratch` (which the caller removes).

    Within a crosstab row the file's order is kept. Outcomes are clipped as the job says, and weights too, unless the
    caller wants them as in the file. Raises `DataError` if the file changed since the census.
    """
    crosstab = census.crosstab
    total = int(crosstab.count.sum())
    kinds = {"record": np.int64, "row": np.int32, "weight": np.float64, "psu": np.int32}
    maps = {name: _map(scratch / f"{name}.npy", kind, total) for name, kind in kinds.items()}
    maps["outcomes"] = _map(scratch / "outcomes.npy", np.float64, total, len(job.outcomes))
    start = np.concatenate([[0], np.cumsum(crosstab.count)])
    for records in _in_rows(job, source, census, lambda checked: checked.outcomes, weights_clipped, tick):
        row = records.row
        order = np.argsort(row.astype(np.uint16) if len(crosstab) <= 2**16 else row, kind="stable")  # 16 bits: a radix sort
        sorted_row = row[order]
        number = np.bincount(row, minlength=len(crosstab))
        position = start[sorted_row] + np.arange(len(row)) - np.concatenate([[0], np.cumsum(number)])[sorted_row]
        start[:-1] += number
        maps["record"][position] = records.record[order]
        maps["row"][position] = sorted_row
        for k, outcome in enumerate(records.outcomes.T):
            maps["outcomes"][position, k] = outcome[order]
        maps["weight"][position] = records.weight[order]
        maps["psu"][position] = records.psu[order]
        let_go(maps.values())
    return Records(**maps)


def records_as_they_came(job: Job, source: Source, census: Census, outcome: int | None) -> Iterator[Records]:
    """The file's records in the file's order, with weights and one outcome before clipping; the file is read again.

    With `outcome` None they have all outcomes, clipped. The file is read because stored records are clipped. Raises
    `DataError` if it changed since the census.
    """
    return _in_rows(
        job, source, census, lambda checked: checked.outcomes if outcome is None else (checked.outcome_in_file(outcome),)
    )


def _in_rows(
    job: Job,
    source: Source,
    census: Census,
    outcomes: Callable[[CheckedBatch], Sequence[Floats]],
    weights_clipped: bool = False,
    tick: Tick = lambda rows: None,
) -> Iterator[Records]:
    """The records of every batch with their rows of the crosstab. Raises `DataError` if the file is not the census's."""
    crosstab, counts = census.crosstab, np.zeros(len(census.crosstab), dtype=np.int64)
    keys, psus = (
        crosstab_key(crosstab.codes, crosstab.levels, len(crosstab)),
        pa.array(census.psu_levels, type=pa.string()),
    )
    for checked in checked_batches(job, source, tick=tick):
        row = _rows(checked, crosstab, keys, source)
        counts += np.bincount(row, minlength=len(crosstab))
        if (counts > crosstab.count).any():
            raise changed_while_read(source)
        weight = checked.weight if weights_clipped else checked.weight_in_file
        yield Records(checked.row, row, np.array(outcomes(checked)).T, weight, _psu_codes(checked, psus, source))
    if not np.array_equal(counts, crosstab.count):
        raise changed_while_read(source)


def _rows(checked: CheckedBatch, crosstab: Crosstab, crosstab_keys: Ints, source: Source) -> Codes:
    """Crosstab row of every record (record,); `crosstab_keys` has the crosstab's keys.

    Raises `DataError` for a record without a crosstab row.
    """
    key = crosstab_key(checked.codes, crosstab.levels, len(checked.row))
    row = np.searchsorted(crosstab_keys, key).astype(np.int32)
    if not np.array_equal(crosstab_keys[np.minimum(row, len(crosstab_keys) - 1)], key):
        raise changed_while_read(source)
    return row


def _psu_codes(checked: CheckedBatch, levels: pa.Array, source: Source) -> Codes:
    """Code of every record's PSU (record,); −1 where the job names none. Raises `DataError` for a PSU not in `levels`."""
    if checked.psu is None:
        return np.full(len(checked.row), -1, dtype=np.int32)
    code = pc.index_in(checked.psu, value_set=levels)
    if code.null_count:
        raise changed_while_read(source)
    return np.asarray(code, dtype=np.int32)


def replicate_sums(job: Job, source: Source, crosstab: Crosstab, outcome: int = 0) -> ReplicateSums | None:
    """Per crosstab row, the sums of replicate weights and of their products with an outcome, which is not clipped.

    The file is read once more. The result is None if the job names no replicate weights.
    """
    declared = job.survey.replicate_weights
    if declared is None:
        return None
    a, b = (np.zeros((len(crosstab), declared.number)) for _ in range(2))
    products = np.zeros((declared.number, declared.number))
    crosstab_keys = crosstab_key(crosstab.codes, crosstab.levels, len(crosstab))
    for checked in checked_batches(job, source):
        row = np.searchsorted(crosstab_keys, crosstab_key(checked.codes, crosstab.levels, len(checked.row)))
        if declared.df is None:
            products += crossed_products(checked.replicates)
        np.add.at(a, row, checked.replicates)
        np.add.at(b, row, checked.replicates * summable(checked.outcome_in_file(outcome))[:, None])
    return ReplicateSums(a, b, replication(declared), declared.df or replicate_df(products))


def replicates_as_they_came(job: Job, source: Source) -> Floats | None:
    """Replicate weights (record, replicate), in the order of `records_as_they_came`; None if the job names none."""
    if job.survey.replicate_weights is None:
        return None
    return np.concatenate([checked.replicates for checked in checked_batches(job, source)])


def _map(path: Path, kind: type, *shape: int) -> np.memmap[Any, Any]:
    """A memory map of a new file.
    Its disk space is reserved at once, because a later write on a full disk would kill the process.

    The values of a column are contiguous.
    """
    array = np.lib.format.open_memmap(path, "w+", kind, shape, fortran_order=True)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def let_go(arrays: Iterable[NDArray[Any] | None]) -> None:
    """Lets the system drop memory-mapped pages; their values remain in the file, because the maps are shared.

    Slices of maps are skipped.
    """
    for array in arrays:
        if array is not None and isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            array.base.madvise(mmap.MADV_DONTNEED)
