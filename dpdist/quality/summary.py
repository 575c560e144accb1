"""Errors of a release and of comparators in summary: worst cells, missing figures, verdicts as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.records import counted_and_named
from dpdist.core.sharing import PiecesInTurn, share_out
from dpdist.publish.predicted_errors import FAR, FAR_NAMED
from dpdist.publish.printed_tables import labels_of
from dpdist.quality.errors import (
    FAR_RECORDS,
    Errors,
    by_statistic,
    distances,
    estimates_of,
    holds_direct,
    place,
)
from dpdist.quality.verdict import NOMINAL, SMALL_RATIO, FixedCounts, GrandFigure, Unpublished, Verdict, judge

LISTED = 3
"""Number of statistics that a verdict's first line names for each fault; the others are in the evaluation."""
MOST_SE = 100
"""Distance in standard errors above which a line says no more than "over"."""
LEAST_CLIPPING = 0.0005
"""Share of a figure from which a line says what clipping to public bounds costs it."""
LEAST_ALLOWED = 0.02
"""Share of intervals that hold only if direct errors are allowed for, above which a sentence says so."""
NOT_ACCURATE = "not accurate"
NO_FAULT = "no fault found in the intervals"
NOTHING = "nothing could be judged"
SMALL = "errors too small"
GIVEN_N = "given the published sample counts"
PART = "no fault found in the figures that could be judged"
Judgements = Mapping[str, Verdict | Unpublished | None]
"""The verdict on each statistic of each table, by name; None if nothing can be judged."""


def head_of(verdicts: Judgements) -> str:
    """The verdict's first line: the most serious fault, and the statistics that have it."""
    judged = [(name, verdict) for name, verdict in verdicts.items() if isinstance(verdict, Verdict)]
    unpublished = [(name, verdict) for name, verdict in verdicts.items() if isinstance(verdict, Unpublished)]
    if not judged and not unpublished:
        return NOTHING
    by_cover = sorted(judged, key=lambda pair: pair[1].least_coverage)
    by_largest = sorted(judged, key=lambda pair: -np.nan_to_num(pair[1].errors.largest))
    by_bias = sorted(judged, key=lambda pair: -abs(pair[1].grand.in_published) if pair[1].grand is not None else 0.0)
    faults = {
        "most figures are withheld, because standard errors are larger than figures": [
            FaultyStatistic(name, f": {verdict.withheld} of {verdict.cells}{_at_end(verdict)}")
            for name, verdict in unpublished
        ],
        "figures for all records are biased": [
            FaultyStatistic(name, _by_bounds(verdict)) for name, verdict in by_bias if verdict.off
        ],
        "too few 90 % intervals contain the direct estimate": [
            FaultyStatistic(name) for name, verdict in by_cover if verdict.too_few
        ],
        "too few intervals of margins contain the direct estimate": [
            FaultyStatistic(name) for name, verdict in judged if verdict.few_margins
        ],
        "most cells err in the same direction": [FaultyStatistic(name) for name, verdict in judged if verdict.one_sided],
        "a cell is too far off": [FaultyStatistic(name) for name, verdict in by_largest if verdict.far is not None],
    }
    found = [f"{fault} ({_first(where)})" for fault, where in faults.items() if where]
    others = [fault for fault, where in faults.items() if where][1:]
    sentences = [*found[:1], f"also: {', '.join(others)}"] if others else found
    unclear = [(name, verdict) for name, verdict in by_cover if verdict.unclear]
    low = [
        FaultyStatistic(name, f": {_of_intervals(verdict)}")
        for name, verdict in unclear
        if verdict.least_coverage < NOMINAL
    ]
    missed = [FaultyStatistic(name) for name, verdict in unclear if verdict.least_coverage >= NOMINAL]
    warned = any(verdict.warns for _, verdict in judged)
    by_error = sorted(judged, key=lambda pair: -np.nan_to_num(pair[1].errors.median))
    far = [FaultyStatistic(name, f": {_sizes(verdict)}") for name, verdict in by_error if verdict.far_off]
    off = [f"large errors, in direct SE ({_first(far)})"] if far else []
    fixed_tables = [(name, verdict.fixed) for name, verdict in judged if verdict.fixed is not None]
    fixed = [f"{name}: {_relative(figures)}" for name, figures in fixed_tables if figures.inaccurate]
    off += [f"counts that the design fixes have large errors ({'; '.join(fixed)})"] if fixed else []
    ratios = "; ".join(f"{name}: {verdict.width:.2f}" for name, verdict in judged if verdict.small)
    small = (
        f"{SMALL}: the median ratio of published to direct standard errors under the survey's design is below "
        f"{SMALL_RATIO:.2f} ({ratios})"
    )
    small_too = [small] if ratios else []
    if sentences:
        stops = bool(unpublished) or any(verdict.stops for _, verdict in judged)
        return f"{'do not publish' if stops else 'accuracy overstated'}: {'; '.join(sentences + small_too + off)}"
    low_coverage = [f"too few 90 % intervals contain the direct estimate ({_first(low)})"] if low else []
    low_coverage += [f"the interval for all records misses the direct estimate ({_first(missed)})"] if missed else []
    if ratios:
        return "; ".join(small_too + off + low_coverage)
    if off:
        return f"{NOT_ACCURATE}: {'; '.join(off + low_coverage)}"
    if low_coverage:
        return f"{'a warning' if warned else 'not clear'}: {'; '.join(low_coverage)}"
    return NO_FAULT if len(judged) == len(verdicts) else PART


class FaultyStatistic(NamedTuple):
    """A statistic of a table, by its name, with a fault, and what more is said of it."""

    name: str
    more: str = ""


def _first(faults: Sequence[FaultyStatistic]) -> str:
    """The first LISTED of these faults, by statistic if no more is said of them, and how many others there are."""
    tables = dict[tuple[str, str], list[str]]()
    for fault in faults[:LISTED]:
        table, _, statistic = fault.name.partition(", ")
        tables.setdefault((statistic, fault.more), []).append(table)
    texts = [f"{_of_tables(statistic, names)}{more}" for (statistic, more), names in tables.items()]
    rest = [f"and {len(faults) - LISTED} more"] if len(faults) > LISTED else []
    return "; ".join([*texts, *rest])


def _of_tables(statistic: str, tables: Sequence[str]) -> str:
    names = ", ".join(tables)
    return f"{statistic} in {'table' if len(tables) == 1 else 'tables'} {names}" if statistic else names


def _at_end(verdict: Unpublished) -> str:
    """What limits at an end of the range tell: a file in another unit than its bounds has all values there."""
    if np.isnan(verdict.end):
        return ""
    return (
        f", whose intervals all reach {large(verdict.end)}, an end of the public range: compare the outcome's unit with "
        "its bounds"
    )


def _by_bounds(verdict: Verdict) -> str:
    """The cause of a bias, where it is clipping to public bounds."""
    if verdict.grand is None or not verdict.grand.off_by_bounds:
        return ""
    return f": {_signed(verdict.grand.clipping)} by clipping to public bounds"


def _signed(share: float) -> str:
    text = f"{share:+.1%}".replace("-0.0%", "0.0%").replace("+0.0%", "0.0%")
    return text.replace("-", "−").replace("%", " %")


def _in_se(size: float) -> str:
    return f"{size:.1f}" if size <= MOST_SE else f"over {MOST_SE}"


def _of_intervals(verdict: Verdict) -> str:
    allowed = (
        f", {100 * verdict.coverage_with_both:.0f} % allowing for errors of direct estimates"
        if verdict.coverage_with_both - verdict.coverage > LEAST_ALLOWED
        else ""
    )
    return f"{verdict.coverage * verdict.cells:.0f} of {verdict.cells}{allowed}"


def _sizes(verdict: Verdict) -> str:
    largest = f", largest {_in_se(verdict.errors.largest)}" if np.isfinite(verdict.errors.largest) else ""
    return f"median {_in_se(verdict.errors.median)}{largest}"


def _relative(fixed: FixedCounts) -> str:
    return f"off by up to {fixed.error:.0%}, intervals up to ±{fixed.reach:.0%}".replace("%", " %")


def bias_of(grand: GrandFigure) -> str:
    """The figure of all records: published, direct, and their difference in percent and in standard errors."""
    off = [_signed(grand.relative)] if np.isfinite(grand.relative) else []
    off += [f"{_in_se(abs(grand.in_published))} published SEs"]
    off += [f"{_in_se(abs(grand.in_noise))} SEs of the noise alone"] if np.isfinite(grand.in_noise) else []
    clipping = f" ({_signed(grand.clipping)} by clipping to bounds)" if abs(grand.clipping) >= LEAST_CLIPPING else ""
    return f"published {large(grand.published)}, direct {large(grand.direct)}, difference {' = '.join(off)}{clipping}"


def _withheld(verdict: Unpublished) -> str:
    return f"withheld, 90 % interval {large(verdict.lower)} to {large(verdict.upper)}, direct {large(verdict.direct)}"


def bias_lines(verdicts: Judgements) -> Iterator[str]:
    """Yields a line for each figure of all records. A figure that several tables share has one line."""
    tables = dict[tuple[str, str], list[str]]()
    for name, verdict in verdicts.items():
        table, _, statistic = name.partition(", ")
        if isinstance(verdict, Unpublished) and np.isfinite(verdict.direct):
            tables.setdefault((statistic, _withheld(verdict)), []).append(table)
        elif isinstance(verdict, Verdict) and verdict.grand is not None:
            tables.setdefault((statistic, bias_of(verdict.grand)), []).append(table)
    for (statistic, text), names in tables.items():
        where = f"table {names[0]}" if len(names) == 1 else f"{len(names)} tables"
        yield f"{statistic} for all records ({where}): {text}"


def in_words(name: str, verdict: Verdict | Unpublished | None) -> str:
    """The verdict on one statistic in sentences."""
    if verdict is None:
        return f"{name}: {NO_ERRORS}"
    if isinstance(verdict, Unpublished):
        figures = f"{name}: {verdict.withheld} of {verdict.cells} figures are withheld{_at_end(verdict)}."
        return f"{figures} Most direct estimates have standard errors below their size. Do not publish."
    intervals = f"90 % intervals cover {100 * verdict.coverage:.0f} % of {verdict.cells} direct estimates"
    if verdict.coverage == 1.0:
        intervals = f"90 % intervals cover all {verdict.cells} direct estimates"
    if verdict.cells == 1:
        intervals = f"the 90 % interval {'covers' if verdict.coverage else 'misses'} the direct estimate"
    sentences = [f"{name}: {intervals}."]
    if verdict.coverage_with_both - verdict.coverage > LEAST_ALLOWED:
        sentences.append(
            f"Intervals that also allow for errors of direct estimates cover {100 * verdict.coverage_with_both:.0f} %."
        )
    if np.isfinite(verdict.width):
        of_cells = "The published" if verdict.cells == 1 else "The median published"
        sentences.append(f"{of_cells} standard error is {verdict.width:.2f} times the direct one.")
    if verdict.small:
        sentences.append(
            "Published standard errors ignore a part of the survey's design. "
            "State a public design effect (survey.design_effect), or a larger one."
        )
    sentences.append(f"Errors in direct standard errors: {errors_in_words(name, verdict.errors)}.")
    if verdict.far_off:
        sentences.append("These errors are large.")
    if verdict.beyond:
        sentences.append(f"More than {FAR_NAMED:g} direct standard errors off: {counted_and_named(verdict.beyond)}.")
    if verdict.fixed is not None:
        sentences += list(_of_fixed(verdict.fixed))
    if verdict.off:
        sentences.append("The figure for all records differs from the direct estimate by more than chance: it is biased.")
    if verdict.too_few:
        sentences.append("Intervals of base cells cover significantly fewer than 90 %.")
    if verdict.one_sided:
        share = max(verdict.above, 1.0 - verdict.above)
        side = "above" if verdict.above > 0.5 else "below"
        sentences.append(
            f"{100 * share:.0f} % of base cells are {side} their direct estimates, on average by "
            f"{abs(verdict.lean):.1f} SE."
        )
    if verdict.far is not None:
        sentences.append(f"{verdict.far} differs from its direct estimate by more than chance.")
    if verdict.few_margins:
        covered, margins = verdict.margins
        sentences.append(
            f"Intervals of margins cover {covered} of {margins} direct estimates: too few, even allowing for shared errors."
        )
    if verdict.unclear:
        sentences += list(_of_few(verdict))
    if verdict.fails:
        sentences.append("Do not publish." if verdict.stops else "Publish wider intervals, or state the bias.")
    return " ".join(sentences)


def _of_few(verdict: Verdict) -> Iterator[str]:
    """Yields what intervals that cover too few direct figures mean, where no test fails."""
    warning = "This is a warning: " if verdict.warns else ""
    if verdict.least_coverage < NOMINAL:
        yield f"{warning}fewer than 90 % are covered." if warning else "Fewer than 90 % are covered."
        often = _frequency(verdict.chance)
        yield f"With correct intervals this happens in {often} of releases, because cells share errors."
    else:
        yield "The interval for all records misses the direct estimate."


def _frequency(share: float) -> str:
    if share > 0.99:
        return "more than 99 %"
    return percent(share) if share >= 0.001 else "less than 0.1 %"


def percent(share: float) -> str:
    """Formats a share in percent: with two digits, and as a whole number from 10 % on."""
    return f"{100 * share:,.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def errors_in_words(statistic: str, errors: Errors) -> str:
    """Errors of a statistic in words, as a plan predicts or a verdict measures them; `statistic` ends with its text."""
    parts = list[str]()
    if np.isfinite(errors.median):
        median = f"{errors.median:.2g}"
        parts.append(median if errors.cells == 1 else f"median {median} over {errors.cells:,} cells")
    if np.isfinite(errors.largest) and errors.cells != 1:
        parts[-1] += f", largest {errors.largest:.2g}"
        far, further = (f"{number:.2g}" if number < 10 else f"{number:,.0f}" for number in (errors.over_2, errors.over_4))
        parts.append(f"cells above {FAR:g}: {far}, above {FAR_NAMED:g}: {further}")
    if np.isfinite(errors.given_n) and statistic.endswith("count"):
        median = "" if errors.cells == 1 else "median "
        parts.append(f"{median}{errors.given_n:.2g} {GIVEN_N}")
    if errors.fixed:
        parts.append(
            f"{'1 cell is' if errors.fixed == 1 else f'{errors.fixed:,} cells are'} fixed by the design, so there is no "
            f"direct standard error: off by {percent(errors.relative)} in the median"
        )
    if errors.fixed and np.isfinite(errors.largest_relative):
        parts[-1] += f", {percent(errors.largest_relative)} at most"
    return "; ".join(parts)


def _of_fixed(fixed: FixedCounts) -> Iterator[str]:
    """Yields sentences on counts that the design fixes, with the remedy."""
    number = "1 count has" if fixed.cells == 1 else f"{fixed.cells} counts have"
    yield f"{number} no direct standard error, because the design fixes them."
    if np.isfinite(fixed.error):
        yield f"In cells of {FAR_RECORDS} records or more they are {_relative(fixed)}."
    yield "If such totals are public, state them (job key rake) to publish them without error."


def large(value: float) -> str:
    """Names of a table's rows for estimates that are not comparators."""
    for unit, times in (("bn", 1e9), ("M", 1e6)):
        if abs(value) >= times:
            digits = f"{value / times:#.3g}".removesuffix(".")
            return f"{digits if abs(value) < 999.5 * times else f'{value / times:,.0f}'} {unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


WORST = 5
GIVEN = "n given"
ROWS = {"synthetic": "published", "synthetic_records": "synthetic records", "clipping": "clipping alone"}
"""Names of the estimates that are not comparators."""
NO_ERRORS = "not judged, because standard errors of published figures or of direct estimates are missing."
WITHHELD = (
    "A decision to withhold the release now depends on the records, and ε does not cover it: follow a rule set beforehand."
)
LOOKED = (
    "A decision to publish after reading this depends on the records, and ε does not cover it. If "
    "gates set beforehand (job key `accept`) make the decision, errors are measured with noise, and ε covers it."
)


class Overall(NamedTuple):
    """The verdicts on all statistics: a first line, the grand figures, and a sentence for each statistic.

    `fails` is true where a fault was found. `stops` is true where the release must not be published.
    """

    head: str
    bias: list[str]
    sentences: list[str]
    fails: bool
    stops: bool


def overall(judged: Judgements) -> Overall:
    """The first line, and the sentences, of verdicts on all statistics."""
    sentences = [in_words(name, verdict) for name, verdict in judged.items()]
    known = [verdict for verdict in judged.values() if verdict is not None]
    fails, stops = any(verdict.fails for verdict in known), any(verdict.stops for verdict in known)
    bias = list(bias_lines(judged))
    return Overall(head_of(judged), bias, [*sentences, WITHHELD] if fails else sentences, fails, stops)


def verdicts(tables: Mapping[str, pd.DataFrame], clustered: bool, number: int) -> dict[str, Verdict | Unpublished | None]:
    """The verdict on each statistic of each table, by name; None if nothing can be judged.

    `clustered` is true if direct errors are those of PSUs or replicate weights. `number` is that of statistics in all
    tables. Workers share the tables.
    """
    names, work = list(tables), partial(_judged, statistics=number, clustered=clustered)
    results = share_out(work, PiecesInTurn(lambda k: tables[names[k]], len(names)))
    return {
        f"{name}, {statistic}": verdict
        for name, of_table in zip(names, results, strict=True)
        for statistic, verdict in of_table.items()
    }


def _judged(rows: pd.DataFrame, statistics: int, clustered: bool) -> dict[str, Verdict | Unpublished | None]:
    """Verdicts by statistic on a table's rows of an evaluation."""
    return {name: judge(group, statistics, clustered) for name, group in by_statistic(rows)}


def errors(rows: pd.DataFrame, guarantee: str) -> pd.DataFrame:
    """Returns a row for each estimate: its class of guarantee, and its median and largest error over cells.

    Errors are in direct standard errors. For counts, the columns `n given` have errors for fixed cell sizes, if known.
    """
    lines, of_counts = [], (rows["statistic"] == "count").all()
    for how in estimates_of(rows):
        size = rows[f"{how}_error_in_se"]
        cells = [ROWS.get(how, how), class_of(rows, how, guarantee)]
        if not size.notna().any():
            lines.append([*cells, "missing", "", "", "", ""])
            continue
        low, middle, high = (float(size.quantile(share)) for share in (0.25, 0.5, 0.75))
        where = place(rows.iloc[int(np.nanargmax(size))], labels_of(rows))
        spread, far = f"{brief(low)} to {brief(high)}", f"{(size[size.notna()] > FAR).mean():.2f}"
        largest = f"{brief(float(size.max()))}: {where}"
        again = distances(rows, how).given_n
        known = of_counts and np.isfinite(again).any()
        both = f"{brief(float(np.nanmedian(again)))}, {brief(float(np.nanmax(again)))}" if known else ""
        lines.append([*cells, brief(middle), spread, far, largest, both])
    frame = pd.DataFrame(lines, columns=["estimate", "guarantee", "median", "quartiles", "over 2", "largest", GIVEN])
    return frame if (frame[GIVEN] != "").any() else frame.drop(columns=GIVEN)


def furthest(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the largest errors in direct standard errors, the largest first."""
    return rows[rows["synthetic_error_in_se"].notna()].nlargest(WORST, "synthetic_error_in_se")


def worst(rows: pd.DataFrame) -> pd.DataFrame:
    """The cells farthest from their direct estimates, one row each, the farthest first."""
    far = furthest(rows)
    cells = [place(row, labels_of(rows)) for _, row in far.iterrows()]
    answers = np.where(far["synthetic_lower"].isna(), "no interval", np.where(holds_direct(far), "yes", "no"))
    columns = {"cell": cells, "published": far["synthetic"], "published SE": far["synthetic_se"], "direct": far["direct"]}
    columns |= {"direct SE": far["direct_se"], "SE off": [brief(size) for size in far["synthetic_error_in_se"]]}
    return pd.DataFrame(columns | {"covered": answers}).reset_index(drop=True)


def missing(rows: pd.DataFrame) -> list[str]:
    """Numbers of cells without an error in direct standard errors, by reason."""
    none, of_quantiles = rows["synthetic_error_in_se"].isna(), rows["statistic"].str.contains("median|quantile")
    reasons = {
        "no record": rows["records"] == 0,
        "no published figure": rows["synthetic"].isna(),
        "one record": rows["records"] == 1,
        ("no direct standard error, for example because a design stratum has a single PSU"): rows["direct_se"].isna()
        & ~of_quantiles,
        "no direct standard error, because the interval of the share below the quantile crosses 0 or 1": rows[
            "direct_se"
        ].isna(),
        "a direct standard error of 0, because the design fixes the figure": (rows["direct_se"] == 0) & ~of_quantiles,
        "a direct standard error of 0, because both limits of the quantile are the same value": rows["direct_se"] == 0,
    }
    reason = np.select([condition & none for condition in reasons.values()], list(reasons), "")
    return [f"{number} of {len(rows)} cells without such an error: {why}" for why, number in _counts(reason)]


def notes(rows: pd.DataFrame) -> list[str]:
    """Notes on comparators: their guarantees, and reasons for missing figures with the number of these."""
    lines = []
    for column in [name for name in map(str, rows.columns) if name.endswith("_note")]:
        for note, number in rows[column].value_counts().items():
            lines.append(
                f"{column.removesuffix('_note')}: {note}"
                + (f" ({number} of {len(rows)} figures)" if number < len(rows) else "")
            )
    return lines


def brief(value: float) -> str:
    """Formats an error briefly: with two decimals below 10, and fewer above."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def class_of(rows: pd.DataFrame, how: str, guarantee: str) -> str:
    """The class of an estimate's guarantee: the release's, none for clipping alone, or that of a comparator's notes."""
    if how in ROWS:
        return guarantee if how != "clipping" else ""
    notes = rows[f"{how.removesuffix('_records')}_note"]
    classes = notes[~notes.str.startswith("missing")]
    return str(classes.iloc[0]).split(",")[0].split(":")[0] if len(classes) else ""


def _counts(values: np.ndarray[tuple[int], np.dtype[np.str_]]) -> Iterator[tuple[str, int]]:
    for why in dict.fromkeys(str(value) for value in values if value):
        yield why, int((values == why).sum())
