"""For `planning`: reads a survey file once, checks every record, and counts records in every crosstab row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from dpdist.core.errors import DataError, Problem
from dpdist.core.records import Crosstab, Floats, Ints, Level, SmallCounts
from dpdist.estimation.direct import SamplingDesign
from dpdist.job import Job
from dpdist.job.families import family_facts
from dpdist.survey.batches import Tick, UnitsMet, checked_batches, crosstab_key, strides
from dpdist.survey.findings import Findings
from dpdist.survey.schema import combined, replicates
from dpdist.survey.source import Source

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


def take_census(job: Job, source: Source, tick: Tick = lambda rows: None) -> Census:
    """Checks every record and counts the crosstab. Raises `DataError` with every problem; writes nothing."""
    columns = job.categories
    levels: dict[str, tuple[Level, ...]] = {name: job.columns[name].levels or () for name in columns}
    findings, psus, tallies, sizes = Findings(), set[str](), list[pd.DataFrame](), list[pd.DataFrame]()
    scale, units = np.log if family_facts(job).logs else np.asarray, UnitsMet(job)
    for checked in checked_batches(job, source, findings, tick):
        scaled = {f"y{j}": scale(outcome) for j, outcome in enumerate(checked.outcomes)} | {"w": scale(checked.weight)}
        key = crosstab_key(checked.codes, levels, len(checked.row))
        tallies.append(_tally(key, scaled))
        if len(tallies) == TALLIES:  # so that memory does not grow with the file
            tallies = [_added(pd.concat(tallies).groupby(level=0))]
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
    if findings.problems:
        raise DataError(source.name, combined(findings.placed(source.lines), replicates(job, source.columns)))
    if not tallies:
        fault = "no record" if findings.seen == 0 else "no record is left after the universe and the stated rules"
        raise DataError(
            source.name, [Problem("file", fault, "at least one record", "check the file and the job's universe")]
        )
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
    return Census(crosstab, findings.removed, findings.seen, names, number, elsewhere, constant, populations, single, small)


def _one_weight(job: Job, source: Source, crosstab: Crosstab, tally: pd.DataFrame) -> None:
    """Raises `DataError` if weights vary where the job says that they do not, or are not those that it declares."""
    columns, public = job.survey.one_weight_in, job.survey.design_weights
    if not columns:
        return
    if public is not None:
        weight = public.of(crosstab)
        beyond = np.maximum(tally["w_high"].to_numpy() - weight, weight - tally["w_low"].to_numpy())
        if (beyond > SAME_WEIGHT * weight).any():
            fault = "records have other weights than survey.design_weights declares"
            remedy = "take the weights from the survey's design documents, or leave survey.design_weights out"
            raise DataError(source.name, [Problem(str(job.survey.weight), fault, "the declared weights", remedy)])
    extent = _added(tally.groupby([crosstab.codes[name] for name in columns]))
    if (extent["w_high"] - extent["w_low"] > SAME_WEIGHT * extent["w_high"].abs()).any():
        fault = f"weights vary within a combination of {', '.join(columns)}"
        remedy = "name the columns of the design under survey.weights_constant_in or design_weights, or leave it out"
        raise DataError(source.name, [Problem(str(job.survey.weight), fault, "one weight in each combination", remedy)])


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
    names = crosstab.design_strata
    codes = np.column_stack([np.zeros(len(crosstab), dtype=np.int32), *(crosstab.codes[name] for name in names)])
    return dict(zip(map(tuple, codes[:, 1:].tolist()), crosstab.design_stratum.tolist(), strict=True))


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
    stated = pd.concat(sizes)
    stated["stratum"] = crosstab.design_stratum[np.searchsorted(keys, stated["key"])]
    problems = []
    remedy = "correct the column: it holds the size of the population that the record's stratum or PSU was sampled from"
    for column, name, by in zip(("first", "second"), job.survey.fpc, (["stratum"], ["stratum", "psu"]), strict=False):
        several = int((stated.groupby(by)[column].nunique() > 1).sum())
        if several:
            which = "design stratum" if column == "first" else "PSU"
            problems.append(Problem(name, f"different sizes in one {which}", f"one size a {which}", remedy, several))
    if problems:
        raise DataError(source.name, problems)
    strata = stated.groupby("stratum")["first"].first().to_numpy(dtype=float)
    if len(job.survey.fpc) == 1:
        return Populations(strata, None)
    psus = stated.groupby(["stratum", "psu"], as_index=False).agg(second=("second", "first"))
    stratum = _stratum_of(crosstab)
    drawn = {(stratum[unit[:-1]], unit[-1]): number for unit, number in units.items() if unit[:-1] in stratum}
    records = [drawn[unit] for unit in zip(psus["stratum"].tolist(), psus["psu"].tolist(), strict=True)]
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
