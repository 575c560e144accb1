"""The text of a new job: facts about a file's columns, and a TODO for every decision."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpdist.cli.design_columns import KINDS, DesignColumns
from dpdist.cli.table_text import DONATED
from dpdist.core.records import Level
from dpdist.job import SPECS, MechanismSpec, budget_text
from dpdist.job.yaml_lines import flow
from dpdist.survey.domains import FEW_RECORDS, ColumnDomain

CONFIRM = "# TODO confirm: seen in the confidential file"
PREDICTED = "# `dpdist plan` predicts the errors of all tables, at this ε and others, at no cost"
PUBLIC_WEIGHTS = (
    "# If the weight of every design stratum is public, design_weights: {{by: {}, path: FILE.csv}} spends no ε on weights"
)
WITHOUT_OUTCOME = "  # `missing: drop` omits records without the outcome from every table"
KEPT_OUTCOME = (
    "# A strict release drops no record for a missing {0}, because the number of remaining records depends on the "
    "answers. Write 0 for it, add an outcome 'answered' of 1 and 0, and publish {{ratio: [{0}, answered]}}; or impute, or "
    "name a universe; or, if the number of records with an answer is public, leave the other records out of the file and "
    "state this under assumed_public"
)
SHARE = "; the mean is the share of {}: swap 0 and 1 to get the share of {}"
ONE_VALUE = "the public file has a single value, so bounds are unknown"
FEW = f"# levels with fewer than {FEW_RECORDS} public records: name the level into which each is merged when files are read"
UNIT = re.compile(
    r"^(.*_)?(household|hh|family|person|respondent|patient|student|firm)(_?(id|no|nr|num|number|key))?$"
    r"|(^|_)(id|hhid|pid|uid|idnum|caseid|seqn)$",
    re.IGNORECASE,
)
"""Names of columns that number persons, households or the like."""
UNITS = "# privacy_unit: {{column: {}, most: …}}  # protects all records of one person or household; unset: one record"
ACCOUNT = "# identifies the survey in the ledger: keep this name in every period, because a new name opens a new account"
MOST_PROPOSED_LEVELS = 30
"""Largest number of levels of a column that is proposed for the released table."""
LONG_RANGE = 6
"""Smallest number of consecutive whole-number levels that are written as a range."""
MOST_GAPS = 3
"""Largest number of whole numbers without a record that a line names."""
YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d")
_PART = r"(?:q[1-4]|h[12]|m(?:0?[1-9]|1[0-2])|w[0-5]?\d|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)"
_DAY = r"(?:(?:0[1-9]|1[0-2])(?:[-_.]?(?:0[1-9]|[12]\d|3[01]))?|\d\d(?:\d\d)?)"
PERIOD = re.compile(
    rf"(?<![0-9])(?:(?<![a-z]){_PART}[-_. ]?)?(?:19|20)\d\d(?:[-_.]?{_DAY}(?!\d)|[-_. ]?{_PART}(?![a-z0-9]))?(?!\d)"
    r"|(?<![a-z])(?:wave|round|version|edition|w|r|v)[-_. ]?\d+(?![a-z0-9])|(?<=[a-z])\d\d$",
    re.IGNORECASE,
)
"""What a file's name says of its period, wave or version. A dataset's name has none of it."""
PROPOSED = {
    "tables": "tables with a proven guarantee; noise is added to differences between the data and a prediction",
    "marginals": "strict tables and records of a yes-or-no outcome, without a reference",
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
    domains: Mapping[str, ColumnDomain]
    from_confidential_file: frozenset[str]
    """Columns whose levels or bounds were read from the confidential file."""
    outcomes: tuple[str, ...]
    weight: str | None
    """None if every record counts as one, or if nobody has said so (`weight_open`)."""
    by: tuple[str, ...]
    mechanism: str
    reference: Mapping[str, str] | None
    design: DesignColumns = DesignColumns()  # noqa: RUF009 - frozen
    proposed: bool = False
    """True if the columns of the table are a proposal, because nobody named them."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of columns, from a codebook."""
    tables: tuple[tuple[str, ...], ...] = ()
    """Columns of every table, where several were named."""
    weight_open: bool = False
    """True if nobody named a weight, and columns' names do not tell one."""

    @property
    def clips_weights(self) -> bool:
        """True if the mechanism needs public bounds of the weight, or can use bounds that are known."""
        spec = self.spec
        pays_for_histograms = spec.histogram_share is not None and self.reference is None
        needed = pays_for_histograms or (spec.adds_noise and not spec.by_cell)
        return self.weight is not None and (needed or (spec.by_cell and self.weight in self.domains))

    @property
    def unit(self) -> str | None:
        """The first column that numbers persons or households by its name, if the job has no other use of it."""
        in_use = {*self.by, *self.design.names, *self.outcomes, self.weight}
        return next((name for name in self.columns if name not in in_use and UNIT.search(name)), None)

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
        lines = [line for part in parts for line in part]
        begun = "# Written by `dpdist init`."
        if any("# TODO" in line for line in lines):
            begun += " Complete the lines marked TODO; `dpdist validate` lists those that remain."
        return "\n".join([begun, *lines]) + "\n"

    def _head(self) -> Iterator[str]:
        yield f"dataset: {flow(self.dataset)}  {ACCOUNT}"
        yield f"period: {flow(self.period)}" if self.period else '# TODO fill: period: "…", the period of the release'
        yield f"input: {flow(dict(self.input))}" if self.input else "# input: {path: …}, or --input FILE"

    def _columns(self) -> Iterator[str]:
        yield "columns:  # public domains: from the questionnaire, a codebook or a public file"
        for name in dict.fromkeys((*self.by, *self.design.strata)):
            yield self._line(name, "levels: […]", "")
        for outcome in self.outcomes:
            domain = self.domains.get(outcome)
            coded = domain is not None and bool(domain.of_outcome().texts)
            whole_key = ", whole: true" if self.counts_codes and not coded else ""
            clip = ", outside: clip" if self.spec.adds_noise and not coded else ""
            holes = domain is not None and domain.holes
            drop = ", missing: drop" if holes and not self.spec.adds_noise else ""
            yield self._line(outcome, "bounds: […, …]", whole_key + clip + drop)
            if holes:
                yield WITHOUT_OUTCOME if drop else f"  {KEPT_OUTCOME.format(flow(outcome))}"
        if self.weight is not None and self.clips_weights:
            yield self._line(self.weight, "bounds: […, …]", ", outside: clip")
        yield from self._recode()
        clipped = [self.weight] if self.clips_weights else []
        roles = {*self.by, *self.design.names, *self.outcomes, *clipped, *([self.unit] if self.unit is not None else [])}
        rest = [name for name in self.columns if name not in roles]
        if rest:
            yield "  # Not used so far:"
        for name in rest:
            if UNIT.search(name):
                yield f"  # {flow(name)}, an identifier, to judge by its name"
                continue
            yield f"  # {self._line(name, '…', '').strip().removeprefix('# TODO fill: ')}"

    def _recode(self) -> Iterator[str]:
        categories = [name for name in dict.fromkeys((*self.by, *self.design.strata)) if name in self.domains]
        if missing := {name: dict.fromkeys(codes) for name in categories if (codes := self.domains[name].missing)}:
            yield f"recode: {flow(missing)}  # codes of missing values, by the codebook: null counts as missing"
        for name in categories:
            if self.domains[name].rare:
                merges = ", ".join(f"{flow(level)}: …" for level in self.domains[name].rare)
                yield f"# recode: {{{flow(name)}: {{{merges}}}}}  {FEW}"

    def _line(self, name: str, template: str, more: str) -> str:
        """Returns the job's line for a column: its domain, the source of the domain, and whether values are missing."""
        domain = self.domains.get(name)
        if domain is not None and template != "…":
            of_levels = domain.of_design if name in self.design.strata else domain.of_category
            of_number = domain.of_outcome if name in self.outcomes else domain.of_number
            domain = of_number() if template.startswith("bounds") else of_levels()
        texts = domain.texts if domain is not None else ()
        nothing = domain is not None and domain.levels is None and domain.bounds is None and not texts
        fits = domain is not None and (template == "…" or getattr(domain, template.partition(":")[0]) is not None)
        if domain is None or nothing or not fits:
            why = f"  # {ONE_VALUE}" if nothing else ""
            more += f", codes: {{{', '.join(f'{flow(text)}: …' for text in texts)}}}" if texts else ""
            return f"  # TODO fill: {flow(name)}: {{{template}{more}}}{why}"
        what = f"levels: {flow(_short(domain.levels))}" if domain.levels else f"bounds: {flow(list(_plain(domain)))}"
        more = (f", codes: {flow(dict(zip(texts, (0, 1), strict=True)))}" if texts else "") + more
        more += ", missing: category" if domain.levels and domain.holes else ""
        clips = template.startswith("levels") and name not in self.design.strata and domain.of_a_number
        more += ", outside: clip" if clips else ""
        whence = (
            CONFIRM
            if name in self.from_confidential_file
            else f"# {domain.origin}" + (", with missing values" if domain.holes else "")
        )
        if name not in self.from_confidential_file and "public file" in domain.origin:
            if name in (*self.outcomes, self.weight) and not texts:
                whence += "; widen them if values have grown since"
            elif clips:
                whence += "; other whole numbers count as the nearest level: if the levels are codes, delete outside: clip"
            elif template != "…" and isinstance(_short(domain.levels or ()), dict):
                whence += "; widen the range if the file may have other values, because values outside it are refused"
            elif template != "…" and 0 < len(gaps := _gaps(domain.levels or ())) <= MOST_GAPS:
                whence += f"; no public record has {' or '.join(map(str, gaps))}: add the levels that a codebook lists"
        whence += SHARE.format(flow(texts[1]), flow(texts[0])) if texts else ""
        return f"  {flow(name)}: {{{what}{more}}}  {whence}"

    def _design(self) -> Iterator[str]:
        if self.weight_open:
            where = "weight: … in the next line" if self.design.settings else "survey: {weight: …}"
            yield f"# TODO fill: {where}, the sampling weight; delete this line if every record counts as one"
        if self.weight is not None or self.design.names:
            yield from self._survey()
        elif not self.weight_open:
            yield "# survey: {weight: …}  # no weight: every record counts as one"
        if self.counts_codes and self.by:
            yield f"strata: {flow(list(self.by))}  # counted separately"
        elif self.spec.weighting and self.by:
            yield f"strata: {flow([self.by[0]])}  # fitted separately"
        outcome_text = flow(self.outcomes[0] if len(self.outcomes) == 1 else list(self.outcomes))
        yield f"outcome: {outcome_text}" if self.outcomes else "# TODO fill: outcome: …, the sensitive number"
        if self.spec.statistics is None:
            predictors = list(self.by[1:]) if self.spec.weighting else []
            model = {"family": "lognormal", **({"predictors": predictors} if predictors else {}), "synthesis": "fbs"}
            yield f"model: {flow(model)}"

    def _survey(self) -> Iterator[str]:
        design = self.design
        weight = {} if self.weight is None else {"weight": self.weight}
        survey = {**weight, **design.settings, **self._effect(clustered=design.psu is not None)}
        comment = "the sample's design" if design.names else "without strata and PSUs: see the how-to on designs"
        if survey:
            yield f"survey: {flow(survey)}  # {comment}"
        if design.strata and self.spec.uses("survey.design_weights"):
            yield PUBLIC_WEIGHTS.format(flow(list(design.strata)))
        if design.replicates is not None:
            prefix, columns = design.replicates
            stated = {"kind": "fay", "fay": 0.5, "prefix": prefix, "number": len(columns)}
            ready = {**weight, **design.settings, "replicate_weights": stated, **self._effect(clustered=True)}
            kinds = f"{', '.join(KINDS)}; fay: 0.5 is for kind fay alone"
            named = design.replicates.in_words
            yield f"# TODO fill: state the method of {named} as kind, and replace the line above by this one: {kinds}"
            yield f"# survey: {flow(ready)}"
        elif design.psu is not None and "design_effect" not in survey:
            yield "# Published errors ignore clusters: state survey.design_effect, if you have a public figure"

    def _effect(self, *, clustered: bool) -> dict[str, str]:
        """The design effect of a clustered survey, which a reference shows."""
        of_reference = clustered and self.reference is not None and self.spec.needs_reference
        return {"design_effect": "reference"} if of_reference else {}

    def _cost(self) -> Iterator[str]:
        yield f"mechanism: {{name: {self.mechanism}}}  # {PROPOSED[self.mechanism]}"
        if self.spec.weighting:
            yield 'budget: {epsilon: "10.8", adjacency: zero_out}  # for the whole release'
        else:
            yield 'budget: {epsilon: "1", adjacency: substitution}  # for the whole release'
            yield UNITS.format("…" if self.unit is None else flow(self.unit))
        if self.spec.adds_noise:
            yield PREDICTED
        if self.spec.statistics is None:
            yield f"synthetic_sets: {3 if self.spec.weighting else 5}"
        if self.reference is not None and self.spec.needs_reference:
            if "period" not in self.reference:
                reference_text = flow({**self.reference, "period": "…"})
                yield f"# TODO fill: reference: {reference_text}, and the period of this file"
                return
            source = "" if "provenance" in self.reference else "; provenance: … says where it comes from"
            yield f"reference: {flow(dict(self.reference))}  # an earlier file, which you declare public{source}"
            if self.spec.sets == "copied":
                yield f"# {DONATED.text}"
        elif (share := self.spec.histogram_share) is not None:
            histogram = f'{{histogram: {{epsilon: "{budget_text(share)}"}}}}'
            yield (
                f"reference: {histogram}  # this much of the budget is spent on histograms; if an earlier public file "
                f"exists, write {{path: …}} instead"
            )
        elif self.spec.needs_reference:
            yield "# TODO fill: reference: {path: …}, an earlier public file of this survey"

    def _publication(self) -> Iterator[str]:
        yield (
            "publish: unless_refused  # the release is held if its verdict is `do not publish`; ε does not cover this "
            "decision"
        )

    def _tables(self) -> Iterator[str]:
        if not self.by or not self.outcomes:
            yield "# TODO fill: tables: [{name: …, by: […], statistics: [count, {mean: …}]}]"
            return
        across: dict[str, Any] = {"by": [list(by) for by in self.tables] if self.tables else list(self.by)}
        if self.spec.uses("hierarchies") and not self.tables and len(self.by) > 1:
            across = {"every_pair_of": list(self.by)}
        table = {"name": "table", **across, "statistics": ["count", *({"mean": name} for name in self.outcomes)]}
        if self.proposed:
            yield "# by: the first categories that are not redundant, because --table named no columns"
        yield "tables:  # one entry for each table, or several: by: [[…], […]]; universe: {…: […]} restricts a table"
        yield f"  - {flow(table)}"
        text = {name: self._text(name) for name in (*self.by, *self.outcomes)}
        if any(text.values()):
            yield f"presentation: {flow({'columns': {name: texts for name, texts in text.items() if texts}})}"

    def _text(self, name: str) -> dict[str, Any]:
        levels = dict(self.domains[name].labels) if name in self.by and name in self.domains else {}
        label = {"label": self.labels[name]} if name in self.labels else {}
        return label | ({"levels": levels} if levels else {})


def dataset_and_period(path: Path | None, period: str | None) -> tuple[str, str | None]:
    """Returns the survey's short name and its period, from a file's name."""
    stem = path.name.partition(".")[0] if path is not None else "survey"
    periods = [text for text in (match[0].strip("-_. ") for match in PERIOD.finditer(stem)) if YEAR.search(text)]
    name = re.sub(r"([_.-])[_.-]+", r"\1", re.sub(r"[^A-Za-z0-9_.-]+", "_", PERIOD.sub("", stem)))
    return name.strip("_.-")[:80] or "survey", period or (re.sub("[_ ]", "-", periods[0]) if len(periods) == 1 else None)


def _short(levels: tuple[Level, ...]) -> list[Level] | dict[str, list[int]]:
    integers = [level for level in levels if isinstance(level, int) and not isinstance(level, bool)]
    if len(integers) == len(levels) >= LONG_RANGE and integers == list(range(integers[0], integers[0] + len(integers))):
        return {"range": [integers[0], integers[-1]]}
    return list(levels)


def _gaps(levels: tuple[Level, ...]) -> list[int]:
    """The whole numbers between the levels that are not levels themselves; empty if some level is not a whole number."""
    integers = [level for level in levels if isinstance(level, int) and not isinstance(level, bool)]
    if not integers or len(integers) < len(levels) or max(integers) - min(integers) > len(integers) + MOST_GAPS:
        return []
    return sorted(set(range(min(integers), max(integers))) - set(integers))


def _plain(domain: ColumnDomain) -> tuple[float, ...]:
    return tuple(int(bound) if float(bound).is_integer() else bound for bound in domain.bounds or ())


def categories(domains: Mapping[str, ColumnDomain], names_in_use: set[str | None]) -> list[str]:
    """Returns the categories that have few levels, and so may be columns of a table."""
    return [
        name
        for name, domain in domains.items()
        if name not in names_in_use and domain.levels is not None and 2 <= len(domain.levels) <= MOST_PROPOSED_LEVELS
    ]
