"""The commands on job files: `init` drafts a job from a file; `show`, `explain` and `schema` print."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dpdist.cli.console import errors_reported, out
from dpdist.cli.design_columns import NONE, Options, chosen_design, refuse_unknown
from dpdist.core.errors import JobError, Problem, suggestion
from dpdist.core.files import sha256, write_text

if TYPE_CHECKING:
    from dpdist.cli.draft import Draft
    from dpdist.job import TextFile
    from dpdist.survey.domains import ColumnDomain
    from dpdist.survey.source import Source


WEIGHT = re.compile(r"weight|wgt|wght|gewicht|(^|_)wt|wts?[0-9]*(_|$)", re.IGNORECASE)
DATASET = "The survey's short name, the same in every period (a ledger charges the account of this name)"
CODEBOOK = "CSV of levels and bounds, or labelled file."


def init(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The confidential file. Only names and types of columns are read."),
    ] = None,
    to: Annotated[Path, typer.Option("--out", "-o", help="New job file.")] = Path("job.yaml"),
    public: Annotated[Path | None, typer.Option("--public", help="Public file that gives levels and bounds.")] = None,
    codebook_file: Annotated[Path | None, typer.Option("--codebook", help=CODEBOOK)] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="Earlier public file, or none; like --public.")
    ] = None,
    outcome: Annotated[list[str] | None, typer.Option("--outcome", help="Sensitive numeric column; repeatable.")] = None,
    weight: Annotated[str | None, typer.Option("--weight", help="Sampling weight, or none.")] = None,
    table: Annotated[list[str] | None, typer.Option("--table", help="Columns of one table: a,b; repeatable.")] = None,
    design_strata: Annotated[
        list[str] | None, typer.Option("--design-strata", help="Column of design strata, or none; repeatable.")
    ] = None,
    psu: Annotated[str | None, typer.Option("--psu", help="Column of PSUs, or none.")] = None,
    replicate_weights: Annotated[
        str | None, typer.Option("--replicate-weights", help="Common prefix of these columns, or none.")
    ] = None,
    records: Annotated[bool, typer.Option("--records", help="Also include synthetic records.")] = False,
    period: Annotated[str | None, typer.Option("--period", help="Period [default: the year in FILE's name].")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; accept all proposals.")] = False,
    confidential: Annotated[
        bool,
        typer.Option("--i-know-this-reads-confidential-data", help="Propose FILE's values, too, to be confirmed."),
    ] = False,
) -> None:
    """Write a commented job for a file. Open decisions are marked TODO."""

    with errors_reported():
        _refuse_place(to)  # before modules whose import takes seconds
        from dpdist.cli.draft import UNIT, Draft, dataset_and_period
        from dpdist.job.loading import to_do
        from dpdist.survey.domains import domains_by_value, domains_of, labels_of
        from dpdist.survey.source import open_file
        from dpdist.survey.typed_file import SPSS

        asks = not yes and sys.stdin.isatty()
        tables = _tables(table)
        chosen = _reference(public, reference, asks)
        _refuse_paths(file, (public, chosen), to)
        written = {path: _detect_format(path) for path in (file, public, chosen) if path is not None}
        sources = {path: open_file(path, how) for path, how in written.items()}
        columns = _columns(sources, file, codebook_file)
        public_file = public or chosen
        domains = (
            domains_by_value(sources[public_file], columns, f"seen in the public file {public_file.name}")
            if public_file is not None
            else {}
        )
        domains |= domains_of(codebook_file, columns, domains) if codebook_file is not None else {}
        labels = labels_of(codebook_file) if codebook_file is not None else {}
        if file is not None and file.suffix.lower() in SPSS:  # its own declarations make these codes missing
            domains = {name: replace(domain, missing=()) for name, domain in domains.items()}
        guessed: dict[str, ColumnDomain] = {}
        if confidential and file is not None:
            guessed = domains_by_value(sources[file], [name for name in columns if name not in domains], "", in_order=False)
        both = domains | guessed
        facts_of_reference = _of_reference(chosen, asks)
        design = chosen_design(list(columns), Options(design_strata, psu, replicate_weights), asks, to)
        remaining = {name: kind for name, kind in columns.items() if name not in design.names and not UNIT.search(name)}
        named_by = list(dict.fromkeys(chain.from_iterable(tables)))
        full_sample = [] if design.replicates is None else design.replicates.of_full_sample(list(remaining))
        outcomes, weights = _roles(columns, remaining, both, outcome, weight, full_sample, named_by, asks, to)
        read = public_file or (file if confidential else None)
        across = tuple(
            named_by or _by(both, remaining, {*outcomes, weights}, None if read is None else sources[read], asks)
        )
        if asks and not records:
            with_records = typer.confirm("Synthetic records, too, and not just tables?", default=False)
        else:
            with_records = records
        method = _mechanism(with_records, chosen, [both.get(outcome) for outcome in outcomes])
        name, when = dataset_and_period(file or public_file, period)
        name = str(typer.prompt(DATASET, default=name)) if asks else name
        paths = [_from(to, path, written) for path in (file, chosen)]
        reference_section = None if paths[1] is None else paths[1] | facts_of_reference
        facts = (
            tuple(columns),
            both,
            frozenset(guessed),
            outcomes,
            weights,
            across,
            method,
            reference_section,
        )
        proposed = not named_by and not asks
        draft = Draft(
            name,
            when,
            paths[0],
            *facts,
            design=design,
            proposed=proposed,
            labels=labels,
            tables=tables[1:] and tables,
            weight_open=weights is None and weight is None and not asks,
        )
        text = draft.text()
        write_text(to, text)
        for line in _noted(draft):
            out.print(line, markup=False, emoji=False)
        left_open = len(to_do(text))
        remedy = (
            f"{left_open} TODO line{'s' * (left_open > 1)} to fill in or confirm; then run"
            if left_open
            else "read it; then"
        )
        out.print(f"{to}: {remedy} dpdist validate {to}", markup=False, emoji=False)


def _tables(table: list[str] | None) -> tuple[tuple[str, ...], ...]:
    """Returns the columns of every table of `--table`."""
    return tuple(tuple(name.strip() for name in option.split(",") if name.strip()) for option in table or ())


def _reference(public: Path | None, answer: str | None, asks: bool) -> Path | None:
    if answer is None and asks:
        question = "An earlier public file of this survey (its path, or none)"
        answer = str(typer.prompt(question, default=str(public) if public is not None else NONE))
    return public if answer is None else None if answer == NONE else Path(answer)


def _of_reference(path: Path | None, asks: bool) -> dict[str, str]:
    from dpdist.cli.draft import dataset_and_period

    if path is None:
        return {}
    period, provenance = dataset_and_period(path, None)[1], ""
    if asks:
        period = str(typer.prompt(f"The period of {path.name}", default=period))
        provenance = str(typer.prompt("Where it comes from, and why it is public", default="", show_default=False))
    return {name: text for name, text in (("period", period), ("provenance", provenance)) if text}


def _by(
    domains: Mapping[str, ColumnDomain],
    columns: Mapping[str, str],
    in_use: set[str | None],
    source: Source | None,
    asks: bool,
) -> list[str]:
    from dpdist.cli.draft import categories
    from dpdist.survey.domains import nested

    candidates = categories({name: domains[name] for name in columns if name in domains}, in_use)
    there = [name for name in candidates if source is not None and name in source.columns]
    same = nested(source, there[0], there[1:]) if source is not None and there else set()
    likely = [name for name in candidates if name not in same][:2]
    if not asks:
        return likely
    while True:
        typed = str(typer.prompt("Columns of the table, separated by commas", default=", ".join(likely) or NONE))
        names = [] if typed == NONE else [name.strip() for name in typed.split(",")]
        if not (unknown := [name for name in names if name not in columns]):
            return names
        typer.echo(f"the file has no column '{unknown[0]:.80}': {suggestion(unknown[0], columns, 'name one of these')}")


def _noted(draft: Draft) -> Iterator[str]:
    from dpdist.cli.table_text import DONATED

    if draft.design.names:
        options = "--design-strata, --psu and --replicate-weights name others, or none"
        yield f"survey design: {draft.design.in_words} ({options})"
    if draft.proposed and draft.by:
        yield f"the table is by {', '.join(draft.by)}, the first categories that are not redundant; --table names others"
    if draft.reference is not None and draft.spec.needs_reference and draft.spec.sets == "copied":
        yield f"{draft.reference['path']} is the reference. {DONATED.text} --reference none leaves it out"


def _refuse_place(to: Path) -> None:
    if to.exists() or not to.parent.is_dir():
        fault = "the file exists" if to.exists() else "its folder does not exist"
        raise JobError.of(str(to), "--out", fault, "a new file in a folder that exists", "name another one")


def _refuse_paths(file: Path | None, public: Sequence[Path | None], to: Path) -> None:
    for path in public:
        if file is None or path is None or not path.exists() or not file.exists():
            continue
        if path.samefile(file) or (path.is_file() and file.is_file() and sha256(path) == sha256(file)):
            fault, remedy = f"'{path}' is the confidential file itself", "name an earlier file, or another, that is public"
            raise JobError.of(str(to), "--public", fault, "a file whose values anybody may know", remedy)


def _columns(sources: Mapping[Path, Source], file: Path | None, book: Path | None) -> dict[str, str]:
    """Returns the names and kinds of the confidential file's columns.

    Without a confidential file, returns those of the first public file or of the codebook.
    """
    from dpdist.survey.domains import domains_of, kinds

    if file is not None:
        return kinds(sources[file])
    if sources:
        return kinds(next(iter(sources.values())))
    if book is not None:
        return dict.fromkeys(domains_of(book, {}, {}), "unknown")
    raise JobError.of("of init", "FILE", "no file", "FILE, --public or --codebook", "name one of them")


def _roles(
    columns: Mapping[str, str],
    remaining: Mapping[str, str],
    domains: Mapping[str, ColumnDomain],
    outcomes: list[str] | None,
    weight: str | None,
    full_sample: Sequence[str],
    by: list[str] | None,
    asks: bool,
    to: Path,
) -> tuple[tuple[str, ...], str | None]:
    """Returns the outcomes and the column of the weight: from the options, the user's answers, or the only choice.

    The choice is among the columns `remaining`, which have no part in the design. Those of `full_sample` have the name of
    replicate weights, and come first.
    """
    likely = [name for name in remaining if WEIGHT.search(name) and name not in (outcomes or ())]
    if weight is None:
        weight = next(iter(full_sample), likely[0] if len(likely) == 1 else None)
        weight = str(typer.prompt("The column of sampling weights (or none)", default=weight or NONE)) if asks else weight
    weight = None if weight == NONE else weight
    numbers = [
        n for n in remaining if n not in (weight, *likely) and n not in (by or ()) and (d := domains.get(n)) and d.bounds
    ]
    if outcomes is None:
        outcomes = numbers if len(numbers) == 1 else []
        candidates = [name for name in numbers or remaining if name != weight]
        question = (
            "The outcomes, sensitive numbers, separated by commas (from "
            f"{', '.join(candidates[:10])}{', …' if len(candidates) > 10 else ''})"
        )
        typed = str(typer.prompt(question, default=outcomes[0] if outcomes else None)) if asks else ""
        outcomes = [name.strip() for name in typed.split(",") if name.strip() not in ("", NONE)] if asks else outcomes
    named = [
        *(("--outcome", name) for name in outcomes),
        ("--weight", weight),
        *(("--table", name) for name in by or ()),
    ]
    refuse_unknown(named, list(columns), to, "name one of these")
    return tuple(dict.fromkeys(outcomes)), weight


def _mechanism(records: bool, reference: Path | None, outcomes: Sequence[ColumnDomain | None]) -> str:
    """Returns the mechanism to propose, as in the table of mechanisms in README.

    It depends on whether there is a reference, whether the outcome is yes or no, and whether records are wanted.
    """
    if not records:
        return "tables"
    yes_or_no = bool(outcomes) and all(
        outcome is not None and (set(map(str, outcome.levels or ())) == {"0", "1"} or len(outcome.of_outcome().texts) == 2)
        for outcome in outcomes
    )
    if reference is None:
        return "marginals" if yes_or_no else "weighted"
    return "sanitized_statistics"


def _from(job: Path, path: Path | None, written: Mapping[Path, TextFile]) -> dict[str, str] | None:
    """Returns a file as a job names it: its path relative to the job's folder, and how its text is written.

    Links to folders are followed, because `..` in a path leads out of the folder that a link names.
    """
    if path is None:
        return None
    there = path.parent.resolve() / path.name
    how = written[path].model_dump(exclude_none=True) if path in written else {}
    return {"path": os.path.relpath(there, job.parent.resolve()), **how}


def _detect_format(path: Path) -> TextFile:
    """Detects encoding and separator of a CSV file; the result is empty for UTF-8 with commas."""
    from dpdist.job import TextFile
    from dpdist.survey.csv_file import UNREAD, CsvFormat, guess_format

    if path.suffix.lower() not in (".csv", ".gz"):
        return TextFile()
    try:
        settings = guess_format(path)._asdict()
    except UNREAD:  # reading the file reports the error
        return TextFile()
    return TextFile(**{name: value for name, value in settings.items() if value != CsvFormat._field_defaults[name]})


def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The name of a shipped job, or a YAML job file.")],
) -> None:
    """Print the text of a shipped job or of a job file."""
    from dpdist.job.loading import find_job
    from dpdist.job.yaml_lines import read_yaml

    with errors_reported():
        out.print(Text(read_yaml(find_job(job), JobError)), end="")


def explain(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="The code in brackets after a caution; without it, all are listed.")
    ] = None,
) -> None:
    """Explain a caution: what it means and what to do."""
    from dpdist.core.cautions import KINDS

    with errors_reported():
        if code is None:
            for name, kind in KINDS.items():
                out.print(f"{name}: {kind.explanation.partition('. ')[0].rstrip('.')}.", markup=False)
            return
        if code not in KINDS:
            remedy = suggestion(code, KINDS, "use a code in brackets after a caution")
            problem = Problem("CODE", f"no caution has the code '{code:.80}'", ", ".join(KINDS), remedy)
            raise JobError(f"{code:.80}", [problem], "explain")
        kind = KINDS[code]
        stage = "before a run" if kind.stage == "plan" else "before a run and in the release"
        out.print(f"{code}, shown {stage}\n{kind.explanation}", markup=False)


def schema() -> None:
    """Print the JSON schema of a job file, for editors. It includes installed plug-ins."""
    from dpdist.job import MODELS, SPECS, WEIGHT_RULES, Job
    from dpdist.job.statistics import KINDS
    from dpdist.survey.source import READERS

    with errors_reported():
        for members in (SPECS, MODELS, WEIGHT_RULES, KINDS, READERS):
            for refusal in members.usable()[1]:
                print(refusal, file=sys.stderr)
        print(json.dumps(Job.model_json_schema(), indent=2))
