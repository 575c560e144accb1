"""The command `dpdist ledger`: creates a privacy ledger, sets limits, shows charges, exports entries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dpdist.cli.console import JsonAnswer, answer, errors_reported, out
from dpdist.core.errors import DpdistError, JobError

if TYPE_CHECKING:
    from dpdist.job import Limits
    from dpdist.ledger.accounts import Receipt
    from dpdist.ledger.pages import Page

app = typer.Typer(
    help="Add up the cost of all releases of a dataset.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Place = Annotated[
    str, typer.Option("--ledger", envvar="DPDIST_LEDGER", help="A file, sqlite:///FILE or postgresql://USER@HOST/DATABASE.")
]
Dataset = Annotated[str | None, typer.Option("--dataset", help="The dataset whose limits are stated.")]
ClassName = Annotated[str, typer.Option("--class", help="strict, zCDP or asymptotic; classes are never added up.")]
Workspaces = Annotated[
    list[str] | None, typer.Argument(metavar="[WORKSPACE]...", help="Runs whose receipts the ledger must have.")
]


@app.command()
def init(
    ledger: Place,
    dataset: Dataset = None,
    cls: ClassName = "strict",
    total: Annotated[
        str | None, typer.Option("--total", help="Limit over all periods, an exact number: 10 or 1/3.")
    ] = None,
    per_period: Annotated[str | None, typer.Option("--per-period", help="Limit for one period.")] = None,
    window: Annotated[str | None, typer.Option("--window", help="Limit over consecutive periods: PERIODS:BUDGET.")] = None,
    delta: Annotated[
        str | None, typer.Option("--delta", help="Total δ of strict releases; for zCDP, the δ at which ε is stated.")
    ] = None,
) -> None:
    """Create a ledger if there is none; with --dataset, state new limits for the dataset."""
    from dpdist.ledger.accounts import Class
    from dpdist.ledger.book import Ledger

    with errors_reported():
        limits = _limits(dataset, cls, total, per_period, window, delta)
        book = Ledger(ledger)
        began = book.begin()
        out.print(f"{'created' if began else 'exists already'}: {book.name}", markup=False)
        if dataset is not None:
            book.limit(dataset, cast(Class, cls), limits)
            out.print(f"limits of {dataset}, {cls}: {_in_words(limits)}", markup=False)


@app.command()
def show(ledger: Place, as_json: JsonAnswer = False) -> None:
    """Show charges by dataset and period, and how much is left within the limits."""
    from dpdist.cli.table_text import facts_text
    from dpdist.ledger.book import Ledger
    from dpdist.ledger.pages import pages

    with errors_reported(as_json=as_json):
        book = Ledger(ledger)
        accounts = pages(book.entries())
        if as_json:
            answer({"ledger": book.name, "accounts": [page.as_json for page in accounts]})
            return
        out.print(facts_text({"ledger": book.name, **({} if accounts else {"charged": "nothing yet"})}))
        for page in accounts:
            _print(page)


@app.command()
def check(ledger: Place, workspaces: Workspaces = None, as_json: JsonAnswer = False) -> None:
    """Check the chain of entries, and that the ledger has the receipts of these runs. Exit code 1: a fault was found."""
    from dpdist.ledger.book import Ledger

    with errors_reported(as_json=as_json):
        book = Ledger(ledger)
        wrong = book.problems({place: _receipt(place) for place in workspaces or ()})
        if as_json:
            answer({"ledger": book.name, "problems": wrong})
        elif wrong:
            for line in wrong:
                out.print(line, markup=False)
        else:
            out.print(f"{len(book.entries())} entries, all intact and in order: {book.name}", markup=False)
        if wrong:
            raise typer.Exit(1)


@app.command()
def export(ledger: Place, as_json: JsonAnswer = False) -> None:
    """Print every entry: as CSV, or with --json in full, one per line, each with its SHA-256."""
    from dpdist.ledger.book import Ledger
    from dpdist.ledger.pages import to_csv

    with errors_reported(as_json=as_json):
        entries = Ledger(ledger).entries()
        if as_json:
            lines = [json.dumps({**entry.content, "sha256": entry.sha256}, ensure_ascii=False) for entry in entries]
            print("[\n" + ",\n".join(lines) + "\n]")
        else:
            print(to_csv(entries), end="")


def _receipt(place: str) -> Receipt:
    from dpdist.ledger.runs import read_receipt
    from dpdist.storage.workspace import Workspace

    with Workspace.opened(place, reading=True) as space:
        receipt = read_receipt(space)
    if receipt is None:
        raise DpdistError(
            f"workspace {place}: it was not charged in any ledger\n    remedy:  name workspaces of charged runs"
        )
    return receipt


def _limits(
    dataset: str | None, cls: str, total: str | None, per_period: str | None, window: str | None, delta: str | None
) -> Limits:
    """Raises `JobError` for limits without a dataset, limits of an unknown class, or limits that are no budgets."""
    from pydantic import ValidationError

    from dpdist.core.public_files import first_problem
    from dpdist.job import Limits
    from dpdist.ledger.accounts import CLASSES

    if cls not in CLASSES:
        raise JobError.of(
            "ledger", "--class", f"'{cls}' is not a class of guarantee", ", ".join(CLASSES), "use one of these"
        )
    if dataset is None and (total or per_period or window or delta):
        raise JobError.of("ledger", "--dataset", "limits without a dataset", "a dataset's name", "add --dataset")
    limits_by_name: dict[str, object] = {"total": total, "per_period": per_period, "delta": delta}
    if window is not None:
        periods, _, budget = window.partition(":")
        limits_by_name["window"] = {"periods": periods, "budget": budget}
    try:
        return Limits.model_validate(limits_by_name)
    except ValidationError as error:
        example = "exact numbers, as --total 10 --per-period 1/2 --window 4:2"
        raise JobError.of("ledger", "limits", first_problem(error), example, "correct the value") from None


def _in_words(limits: Limits) -> str:
    facts = limits.model_dump(mode="json", exclude_none=True)
    window = facts.pop("window", None)
    lines = [f"{name.replace('_', ' ')} {value}" for name, value in facts.items()]
    lines += [f"{window['budget']} in {window['periods']} consecutive periods"] if window else []
    return ", ".join(lines) or "none"


def _print(page: Page) -> None:
    import pandas as pd

    from dpdist.cli.table_text import facts_text, table_text

    out.print()
    out.print(table_text(page.title, pd.DataFrame(page.lines)))
    out.print(facts_text(page.facts))
