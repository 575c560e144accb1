"""Writes the text of a new job: the known facts about its columns, and a TODO for every open decision."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import typer

from dpdist.cli.table_text import DONATED, DONORS
from dpdist.core.errors import JobError, Problem, ProblemsError
from dpdist.core.records import Level
from dpdist.job import SPECS, MechanismSpec
from dpdist.job.loading import parse_job
from dpdist.job.yaml_lines import flow
from dpdist.planning.expected_noise import at_sizes_of
from dpdist.survey.census import take_census
from dpdist.survey.domains import Domain
from dpdist.survey.source import Source

PSU = re.compile(r"(^|_)(psus?|clusters?|sdmvpsu|varunit|secu)(_?id|_?code|_?no)?$", re.IGNORECASE)
STRATUM = re.compile(
    r"^(design_?|var(iance)?_?|pseudo_?)?(strat|stratum|strata|sdmvstra|varstr(at)?)(_?id|_?code|_?no)?$", re.I
)
REPLICATE = re.compile(r"^(.*(?:rep|brr|jk|boot|bs|wgt|weight|wt|rw|fay).*?)([0-9]+)$", re.IGNORECASE)
NONE = "none"
FAY = "fay"
KINDS = ("brr", FAY, "jackknife", "bootstrap", "successive_difference")
"""Methods of replicate weights. FAY has a constant, which the job states."""
FEWEST_REPLICATES = 8
"""Smallest number of columns, numbered 1, 2, 3 and so on, that are proposed as replicate weights."""


@dataclass(frozen=True)
class DesignColumns:
    """Columns of the design: strata, PSU, and the prefix and number of replicate weights."""

    strata: tuple[str, ...] = ()
    psu: str | None = None
    replicates: tuple[str, int] | None = None
    kind: str | None = None
    """The method that made the replicate weights; None if the user did not state it."""
    fay: float | None = None
    """The constant of the method FAY."""

    @property
    def clustered(self) -> bool:
        return self.psu is not None or (self.replicates is not None and self.kind is not None)

    @property
    def names(self) -> frozenset[str]:
        """Returns every column that has a part in the design."""
        prefix, number = self.replicates or ("", 0)
        again = (f"{prefix}{k}" for k in range(1, number + 1))
        return frozenset({*self.strata, *again, *([self.psu] if self.psu is not None else [])})

    @property
    def in_words(self) -> str:
        """Returns the columns and their parts."""
        prefix, number = self.replicates or ("", 0)
        parts = {
            "strata": ", ".join(self.strata),
            "PSU": self.psu or "",
            "replicate weights": f"{prefix}1 to {prefix}{number}" if number else "",
        }
        return "; ".join(f"{name} {columns}" for name, columns in parts.items() if columns)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Returns the settings of `survey`. Replicate weights are left out if nobody stated their method."""
        made: dict[str, Any] = {"design_strata": list(self.strata)} if self.strata else {}
        if self.replicates is not None and self.kind is not None:
            prefix, number = self.replicates
            constant = {"fay": self.fay} if self.fay is not None else {}
            return made | {"replicate_weights": {"kind": self.kind, **constant, "prefix": prefix, "number": number}}
        return made | ({"psu": self.psu} if self.psu is not None else {})


class Options(NamedTuple):
    """The options about the design; None for an option that was not given."""

    strata: Sequence[str] | None
    psu: str | None
    replicates: str | None
    kind: str | None
    fay: float | None = None


def chosen_design(names: Sequence[str], given: Options, asks: bool, job: Path) -> DesignColumns:
    """Returns the design by the options, the answers, or the names of columns. Raises `JobError` for an unknown column."""
    likely = by_name(names)
    strata, psu, prefix = given.strata, given.psu, given.replicates
    if asks and strata is None:
        answer = str(
            typer.prompt("Columns of design strata, with commas (or none)", default=", ".join(likely.strata) or NONE)
        )
        strata = [name.strip() for name in answer.split(",")]
    if asks and psu is None and prefix is None and likely.replicates is None:
        psu = str(typer.prompt("The column of primary sampling units (or none)", default=likely.psu or NONE))
    chosen = likely.strata if strata is None else tuple(name for name in strata if name != NONE)
    unit = (likely.psu if prefix in (None, NONE) else None) if psu is None else None if psu == NONE else psu
    again = likely.replicates if psu in (None, NONE) else None
    if prefix is not None:
        again = None if prefix == NONE else replicates(names, prefix)
    if prefix not in (None, NONE) and again is None:
        wanted = f"columns {prefix:.80}1, {prefix:.80}2, …"
        raise JobError(
            str(job), [Problem("--replicate-weights", "the file has no such columns", wanted, "name their prefix")]
        )
    kind, fay = _method(given, asks, job)
    for option, name in (*(("--design-strata", column) for column in chosen), ("--psu", unit)):
        if name is not None and name not in names:
            near = get_close_matches(name, list(names), n=1)
            remedy = f"did you mean '{near[0]}'?" if near else "name one of these, or none"
            problem = Problem(option, f"the file has no column '{name:.80}'", ", ".join(names[:20]), remedy)
            raise JobError(str(job), [problem])
    return DesignColumns(chosen, unit, again, kind, fay)


def _method(given: Options, asks: bool, job: Path) -> tuple[str | None, float | None]:
    kind, fay = given.kind if given.kind is not None or given.fay is None else FAY, given.fay
    if kind is not None and kind not in KINDS:
        near = get_close_matches(kind, KINDS, n=1)
        remedy = f"did you mean '{near[0]}'?" if near else "take one of these"
        raise JobError(str(job), [Problem("--replicate-kind", f"'{kind:.80}' is not known", ", ".join(KINDS), remedy)])
    if kind == FAY and fay is None and asks:
        fay = float(typer.prompt("Fay's k, the share of its weight that a dropped half keeps", default=0.5))
    if (kind == FAY) != (fay is not None):
        fault = "no k for the kind fay" if fay is None else f"k goes with the kind fay, and only with it: not with {kind}"
        raise JobError(str(job), [Problem("--fay", fault, "--replicate-kind fay --fay 0.5", "state both")])
    if fay is not None and not 0.0 < fay < 1.0:
        raise JobError(str(job), [Problem("--fay", f"{fay:g}", "a number between 0 and 1", "see the file's documentation")])
    return kind, fay


def by_name(names: Iterable[str]) -> DesignColumns:
    """Returns the design's columns as their names suggest. Replicate weights are preferred to PSUs."""
    listed = list(names)
    strata = tuple(name for name in listed if STRATUM.search(name))[:1]
    units = [name for name in listed if PSU.search(name)]
    again = replicates(listed)
    psu = units[0] if len(units) == 1 and again is None else None
    return DesignColumns(strata, psu, again)


def replicates(names: Iterable[str], prefix: str | None = None) -> tuple[str, int] | None:
    """Returns the prefix and the number of columns numbered from 1 in a row: of the prefix, or of the longest row."""
    rows: dict[str, set[int]] = {}
    for name in names:
        parted = re.fullmatch(r"(.*?)([0-9]+)", name) if prefix is not None else REPLICATE.fullmatch(name)
        if parted is not None and not parted[2].startswith("0"):
            rows.setdefault(parted[1], set()).add(int(parted[2]))
    runs = {stem: _in_a_row(numbers) for stem, numbers in rows.items() if prefix in (None, stem)}
    if not runs:
        return None
    best = max(runs, key=lambda stem: runs[stem])
    return (best, runs[best]) if runs[best] >= (FEWEST_REPLICATES if prefix is None else 2) else None


def _in_a_row(numbers: set[int]) -> int:
    """Returns how many numbers from 1 on are there."""
    return next(k for k in range(len(numbers) + 1) if k + 1 not in numbers)


CONFIRM = "# TODO confirm: seen in the confidential file"
MOST_CELLS_OF_A_COLUMN = 30
"""Largest number of levels of a column that is proposed for the released table."""
LONG_RANGE = 6
"""Smallest number of consecutive whole-number levels that are written as a range."""
YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?:-\d{2,4})?(?!\d)")
PROPOSED = {
    "reference_tables": "strict tables, clipped at limits that are fixed on public data or on noisy histograms",
    "laplace_strict": "strict tables, with noise by public bounds",
    "weighted_marginals": "strict tables and records of a yes-or-no outcome, without a reference",
    "sanitized_statistics": "strict tables and records of a lognormal outcome, under an earlier public file",
    "weighted": "tables and records of a lognormal outcome; asymptotic, no guarantee for every file",
}
"""Mechanisms that a new job may have, each with its purpose."""


@dataclass(frozen=True)
class Draft:
    """The contents of a new job, with paths as the job will name them. None marks an open decision."""

    dataset: str
    period: str | None
    input: Mapping[str, str] | None
    """Path of the input, and how its text is written."""
    columns: tuple[str, ...]
    domains: Mapping[str, Domain]
    seen: frozenset[str]
    """Columns whose levels or bounds were read from the confidential file."""
    outcome: str | None
    weight: str | None
    by: tuple[str, ...]
    mechanism: str
    reference: Mapping[str, str] | None
    design: DesignColumns = DesignColumns()
    proposed: bool = False
    """True if the columns of the table are a proposal, because nobody named them."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of columns, from a codebook."""
    noise: str = ""
    """A comment on the noise at the proposed ε."""

    @property
    def clips_weights(self) -> bool:
        """True if the mechanism needs public bounds of the weight, or can use bounds that are known."""
        spec = self.spec
        paid = spec.own_histograms and self.reference is None
        needed = paid or (spec.adds_noise and not spec.by_cell)
        return self.weight is not None and (needed or (spec.by_cell and self.weight in self.domains))

    @property
    def counts_codes(self) -> bool:
        """True if the mechanism counts the levels of coded outcomes in every stratum."""
        return self.spec.statistics == "marginals"

    @property
    def spec(self) -> type[MechanismSpec]:
        """Returns the specification of the mechanism."""
        return SPECS[self.mechanism]

    def text(self) -> str:
        """Returns the text of the job file."""
        parts = (self._head(), self._columns(), self._design(), self._cost(), self._publication(), self._tables())
        return "\n".join(line for part in parts for line in part) + "\n"

    def _head(self) -> Iterator[str]:
        yield "# Begun by `dpdist init`. Lines marked TODO are yours; `dpdist validate` names those that are left."
        yield f"dataset: {flow(self.dataset)}"
        yield f"period: {flow(self.period)}" if self.period else '# TODO fill: period: "…", what the release is of'
        yield f"input: {flow(dict(self.input))}" if self.input else "# input: {path: …}, or --input FILE"

    def _columns(self) -> Iterator[str]:
        yield "columns:  # public domains: from the questionnaire, a codebook or a public file"
        for name in dict.fromkeys((*self.by, *self.design.strata)):
            yield self._line(name, "levels: […]", "")
        if self.outcome is not None:
            whole = ", whole: true" if self.counts_codes else ""
            clip = ", outside: clip" if self.spec.adds_noise else ""
            yield self._line(self.outcome, "bounds: […, …]", whole + clip)
        if self.weight is not None and self.clips_weights:
            yield self._line(self.weight, "bounds: […, …]", ", outside: clip")
        used = {*self.by, *self.design.names, self.outcome, *([self.weight] if self.clips_weights else [])}
        rest = [name for name in self.columns if name not in used]
        if rest:
            yield "  # Not used so far:"
        for name in rest:
            yield f"  # {self._line(name, '…', '').strip().removeprefix('# TODO fill: ')}"

    def _line(self, name: str, wanted: str, more: str) -> str:
        """Returns the job's line for a column: its domain, the source of the domain, and whether values are missing."""
        domain = self.domains.get(name)
        if domain is not None and wanted != "…":
            of_levels = domain.of_design if name in self.design.strata else domain.of_category
            domain = domain.of_number() if wanted.startswith("bounds") else of_levels()
        fits = domain is not None and (wanted == "…" or getattr(domain, wanted.partition(":")[0]) is not None)
        if domain is None or not fits:
            return f"  # TODO fill: {flow(name)}: {{{wanted}{more}}}"
        what = f"levels: {flow(_short(domain.levels))}" if domain.levels else f"bounds: {flow(list(_plain(domain)))}"
        more += ", missing: category" if domain.levels and domain.holes else ""
        whence = CONFIRM if name in self.seen else f"# {domain.origin}" + (", with missing values" if domain.holes else "")
        if name in (self.outcome, self.weight) and name not in self.seen and "public file" in domain.origin:
            whence += "; widen them if values have grown since"
        return f"  {flow(name)}: {{{what}{more}}}  {whence}"

    def _design(self) -> Iterator[str]:
        if self.weight is not None:
            yield from self._survey()
        else:
            yield "# survey: {weight: …}  # no weight: every record counts as one"
        if self.counts_codes and self.by:
            yield f"strata: {flow(list(self.by))}  # counted apart"
        elif self.spec.weighs and self.by:
            yield f"strata: {flow([self.by[0]])}  # fitted apart"
        yield f"outcome: {flow(self.outcome)}" if self.outcome else "# TODO fill: outcome: …, the sensitive number"
        if self.spec.statistics is None:
            predictors = list(self.by[1:]) if self.spec.weighs else []
            model = {"family": "lognormal", **({"predictors": predictors} if predictors else {}), "synthesis": "fbs"}
            yield f"model: {flow(model)}"

    def _survey(self) -> Iterator[str]:
        design = self.design
        survey = self._stated(design)
        comment = "the sample's design" if design.names else "without strata and PSUs: see the how-to on designs"
        yield f"survey: {flow(survey)}  # {comment}"
        if design.replicates is not None and design.kind is None:
            prefix, number = design.replicates
            ready = self._stated(replace(design, kind=FAY, fay=0.5))
            kinds = f"{', '.join(KINDS)}; fay: 0.5 is for kind fay alone"
            columns = f"{prefix}1 to {prefix}{number}"
            yield f"# TODO fill: the method of {columns} as kind, and take this for the line above: {kinds}"
            yield f"# survey: {flow(ready)}"
        elif design.clustered and "design_effect" not in survey:
            yield "# Published errors know no clusters: state survey.design_effect, a public figure, where you have one"

    def _stated(self, design: DesignColumns) -> dict[str, Any]:
        of_reference = design.clustered and self.reference is not None and self.spec.needs_reference
        return {"weight": self.weight, **design.settings, **({"design_effect": "reference"} if of_reference else {})}

    def _cost(self) -> Iterator[str]:
        yield f"mechanism: {{name: {self.mechanism}}}  # {PROPOSED[self.mechanism]}"
        if self.spec.weighs:
            yield 'budget: {epsilon: "10.8", adjacency: zero_out}  # of the whole release'
        else:
            yield 'budget: {epsilon: "1", adjacency: substitution}  # of the whole release'
        if self.noise:
            yield f"# {self.noise}"
        if self.spec.statistics is None:
            yield f"synthetic_sets: {3 if self.spec.weighs else 5}"
        if self.reference is not None and self.spec.needs_reference:
            if "period" not in self.reference:
                named = flow({**self.reference, "period": "…"})
                yield f"# TODO fill: reference: {named}, and the period that this file is of"
                return
            yield f"reference: {flow(dict(self.reference))}  # an earlier file of this survey, which you declare public"
            if self.spec.donates:
                yield f"# {DONATED}: {DONORS}"
        elif self.spec.own_histograms:
            yield 'reference: {histogram: {epsilon: "0.3"}}  # a part of the budget; with an earlier public file: {path: …}'
        elif self.spec.needs_reference:
            yield "# TODO fill: reference: {path: …}, an earlier file of this survey that is public"

    def _publication(self) -> Iterator[str]:
        yield "publish: unless_refused  # a verdict of `do not publish` holds the release; this choice is in no ε"

    def _tables(self) -> Iterator[str]:
        if not self.by or self.outcome is None:
            yield "# TODO fill: tables: [{name: …, by: […], statistics: [count, {mean: …}]}]"
            return
        table = {"name": "table", "by": list(self.by), "statistics": ["count", {"mean": self.outcome}]}
        if self.proposed:
            yield "# by: nobody named these columns; they are the first categories that do not say the same"
        yield f"tables:  # several in one entry: by: [[…], […]], or every_pair_of: […]\n  - {flow(table)}"
        text = {name: self._text(name) for name in (*self.by, self.outcome)}
        if any(text.values()):
            yield f"presentation: {flow({'columns': {name: texts for name, texts in text.items() if texts}})}"

    def _text(self, name: str) -> dict[str, Any]:
        levels = dict(self.domains[name].labels) if name in self.by and name in self.domains else {}
        label = {"label": self.labels[name]} if name in self.labels else {}
        return label | ({"levels": levels} if levels else {})


def named(path: Path | None, period: str | None) -> tuple[str, str | None]:
    """Returns the survey's short name and its period, from a file's name."""
    stem = path.name.partition(".")[0] if path is not None else "survey"
    years = YEAR.findall(stem)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", YEAR.sub("", stem)).strip("_.-")[:80] or "survey"
    return name, period or (years[0] if len(years) == 1 else None)


def _short(levels: tuple[Level, ...]) -> list[Level] | dict[str, list[int]]:
    whole = [level for level in levels if isinstance(level, int) and not isinstance(level, bool)]
    if len(whole) == len(levels) >= LONG_RANGE and whole == list(range(whole[0], whole[0] + len(whole))):
        return {"range": [whole[0], whole[-1]]}
    return list(levels)


def _plain(domain: Domain) -> tuple[float, ...]:
    return tuple(int(bound) if float(bound).is_integer() else bound for bound in domain.bounds or ())


def categories(domains: Mapping[str, Domain], taken: set[str | None]) -> list[str]:
    """Returns the categories that have few levels, and so may be columns of a table."""
    return [
        name
        for name, domain in domains.items()
        if name not in taken and domain.levels is not None and 2 <= len(domain.levels) <= MOST_CELLS_OF_A_COLUMN
    ]


NOT_KNOWN = "`dpdist plan` says how many cells noise drowns at this ε, and which ε would do: no public sizes are known here"


def with_noise(draft: Draft, folder: Path, public: Path | None, sources: Mapping[Path, Source]) -> Draft:
    """Returns the draft with a comment on the noise, if its mechanism adds noise.

    The confidential file's sizes are not used. `folder` is that of the job file.
    """
    if not draft.spec.adds_noise:
        return draft
    comment = NOT_KNOWN
    if public is not None:
        with suppress(ProblemsError):  # lines are left to fill, or the public file does not fit the job
            job = parse_job(draft.text(), folder=folder)
            if (expected := at_sizes_of(job, take_census(job, sources[public]).frame)) is not None:
                comment = f"With cells as large as those of {public.name}, {expected}"
    return replace(draft, noise=comment)
