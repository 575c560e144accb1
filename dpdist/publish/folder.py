"""The public folder: built aside from the released object alone, swapped in whole, manifest last."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from dpdist.errors import WorkspaceError
from dpdist.files import write_json
from dpdist.models.noisy_tables import NoisyTables
from dpdist.progress import Listener, silent, stage
from dpdist.publish.precision import spreads
from dpdist.publish.released import Release, write_release
from dpdist.publish.statement import manifest, statement
from dpdist.publish.synthesis import synthesize
from dpdist.publish.tables import Grounds, expectations, table


def publish(release: Release, public: Path, listener: Listener = silent) -> None:
    """Write the public folder. Spends nothing and reads nothing but `release`; the same release gives the same bytes."""
    building = public.with_name(f".{public.name}.new")
    if building.exists():
        shutil.rmtree(building)
    building.mkdir(parents=True)
    write_release(building / "released", release)
    grounds = {} if isinstance(release.model(0), NoisyTables) else _grounds(release, building, listener)
    (building / "tables").mkdir()
    with stage(listener, "tables", len(release.job.tables)) as tick:
        for said in release.job.tables:
            made = table(release, said, grounds)
            pq.write_table(made, building / "tables" / f"{said.name}.parquet")
            pa_csv.write_csv(for_spreadsheets(made), building / "tables" / f"{said.name}.csv")
            tick(1)
    write_json(building / "statement.json", statement(release))
    write_json(building / "manifest.json", manifest(building, release))
    swap_in(building, public)


_FORMULA = re.compile(r"[=@＝＠]|[-+－＋](?!\d+\.?\d*$)")


def for_spreadsheets(table: pa.Table) -> pa.Table:
    """The table with an apostrophe before each text that a spreadsheet would run as a formula; a signed number is none."""

    def plain(text: str | None) -> str | None:
        return f"'{text}" if text is not None and _FORMULA.match(text) else text

    columns = [
        pa.array([plain(text) for text in column.to_pylist()], pa.string()) if pa.types.is_string(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, names=[str(plain(name)) for name in table.column_names])


def _grounds(release: Release, building: Path, listener: Listener) -> dict[str, Grounds]:
    """Writes the synthetic records; what every outcome's estimates are made of."""
    strata = len(release.frame.stratum_labels)
    with stage(listener, "synthetic records", strata) as tick:
        sums = synthesize(release, building / "synthetic", tick)
    with stage(listener, "standard errors", strata) as tick:
        outcomes, spread = release.job.model.outcomes, spreads(release, tick)
        return {
            name: Grounds(expectations(release, j), sums[j], None if spread is None else spread[j])
            for j, name in enumerate(outcomes)
        }


@contextmanager
def publishing(public: Path) -> Iterator[None]:
    """The public folder to oneself, and whole: what a kill in the middle of a swap left is put right first."""
    if not public.parent.is_dir():
        yield
        return
    lock = FileLock(public.with_name(f".{public.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise WorkspaceError(str(public), "another command is publishing it", "wait for that command to end") from None
    try:
        recover(public)
        yield
    finally:
        lock.release()


def swap_in(building: Path, public: Path) -> None:
    """Put a finished folder in place; killed in between, `recover` brings back the old one."""
    old = _old(public)
    if public.exists():
        public.rename(old)
    building.rename(public)
    if old.exists():
        shutil.rmtree(old)


def recover(public: Path) -> None:
    """After a kill in the middle of a swap: the old folder is put back, or removed if the new one stands."""
    old = _old(public)
    if old.exists():
        if public.exists():
            shutil.rmtree(old)
        else:
            old.rename(public)


def _old(public: Path) -> Path:
    return public.with_name(f".{public.name}.old")
