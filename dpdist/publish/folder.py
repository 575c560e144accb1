"""The public folder, written from the released object alone into a new folder, which then replaces the old one.

The manifest is written last.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dpdist.core.errors import installed
from dpdist.core.files import RELEASE, aside, sha256, swap_in, version_of, write_json, write_text
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.public_files import MANIFEST, SIGNATURE, UNFIT, canonical, release_id
from dpdist.core.records import MANY_ROWS, Floats
from dpdist.core.sharing import share_out
from dpdist.core.this_process import return_memory, single_threaded
from dpdist.estimation.estimators import PsuSums
from dpdist.job import Table
from dpdist.models.protocol import supports
from dpdist.publish.further_statistics import Material
from dpdist.publish.noisy_figures import (
    FILE as MEASUREMENTS,
    NoisedTables,
    NoiseParts,
    remember_noise,
    write_measurements,
    write_model_tables,
)
from dpdist.publish.predicted_errors import OfTable, Ratios, Within, beyond_direct, entry, within_cells
from dpdist.publish.printed_tables import WrittenTables, far_off_in, printed_table, written_tables
from dpdist.publish.refit import Expected
from dpdist.publish.released import ByBatch, ReleasedObject, run_here, write_released
from dpdist.publish.standard_errors import CellsKey, cells_key, simulate_errors, take_noise
from dpdist.publish.statement import statement
from dpdist.publish.synthesis import expectations, synthesize
from dpdist.publish.tables import Grounds, table
from dpdist.publish.withholding import with_withheld, without_empty_figures
from dpdist.publish.writers.codebook import write_codebook, write_ddi, write_registry
from dpdist.publish.writers.csv_tables import for_spreadsheets, wide_text
from dpdist.publish.writers.microdata import write_measurements_stata, write_microdata
from dpdist.publish.writers.page import write_page
from dpdist.publish.writers.sdmx import write_sdmx
from dpdist.publish.writers.workbook import write_workbook

HASHES = ("sha256", "chain")
"""Keys of a reference's hashes: of its file; or of an earlier release's manifest and of the releases before that one."""
THIRD_PARTY = {
    "mechanism": "third_party",
    "weight rule": "third_party_weight_rule",
    "family": "third_party_family",
}
"""Keys of the distributions that bring parts, by what a part is."""
PACKAGES = ("dpdist", "numba", "numpy", "opendp", "pandas", "pyarrow", "randomgen", "scipy")
"""Packages that can change a published number."""
COMPILED = "numba"
"""The package of `PACKAGES` that an install may lack."""


def manifest(folder: Path, released: ReleasedObject, withheld: Mapping[str, Any] | None = None) -> bytes:
    """The manifest of an otherwise complete folder: hashes of files, job, versions, date, and a name derived from
    these.

    `withheld` is the statement's entry on withheld figures.

    It is canonical JSON (RFC 8785): equal content gives equal bytes, so a signature of the file signs the content.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    reference, date = released.promise.get("reference"), released.promise.get("date")
    entries: dict[str, Any] = {
        "format": RELEASE,
        "dataset": released.job.dataset,
        "period": released.job.period,
        **({"date": date} if date is not None else {}),
        "files": {path.relative_to(folder).as_posix(): sha256(path) for path in files},
        **({"withheld": {name: withheld[name] for name in ("above", "figures")}} if withheld else {}),
        **({"reference": {name: reference[name] for name in HASHES if name in reference}} if reference else {}),
        "job": released.job.public,
        **{THIRD_PARTY[part]: origin for part, (_, origin) in released.job.third_party.items()},
        **({"third_party_statistics": parts} if (parts := released.job.third_party_statistics) else {}),
        **({"third_party_readers": readers} if (readers := released.promise.get("readers")) else {}),
        "versions": versions(),
    }
    return canonical({**entries, "release": release_id(entries)})


@cache
def versions() -> dict[str, str]:
    return {name: version_of(name) for name in PACKAGES if name != COMPILED or installed(COMPILED)}


REPLAYED = """This folder was made with --replay, for a test or an audit, and repeats another run's draws.
Publish the folder of that run. If two folders have the same noise but different data or code, they differ by exact sums.
"""

SIMULATED = """This folder was made for a study: its noise follows from a key in the study's file.
Whoever knows the key can remove the noise, so no guarantee applies to it.
"""


def publish(
    released: ReleasedObject, public: Path, listener: Listener = silent, unfit: str = "", by_batch: ByBatch = run_here
) -> None:
    """Writes the public folder. It spends nothing and reads only `released`; the same object gives the same bytes.

    `unfit` is the reason not to publish the folder: it is a replay, or it is held. The reason is written to the file
    `UNFIT`. An existing `UNFIT` stays when the folder is published again. A signature stays if the manifest is
    unchanged. `by_batch` does the work of batches of strata.
    """
    with single_threaded():  # whoever publishes: sums that threads share have other last digits
        _publish(released, public, listener, unfit, by_batch)


def _publish(released: ReleasedObject, public: Path, listener: Listener, unfit: str, by_batch: ByBatch) -> None:
    building = aside(public)
    if building.exists():
        shutil.rmtree(building)
    building.mkdir(parents=True)
    write_released(building / "released", released)
    tables, beyond = _write_tables(
        released, building / "tables", *grounds_of(released, building, listener, by_batch), listener
    )
    _return_memory_of_many_rows(released)
    stated = with_withheld(
        released.job, lambda spec: pq.read_table(building / "tables" / f"{spec.name}.parquet"), statement(released, beyond)
    )
    write_json(building / "statement.json", stated)
    written = json.loads((building / "statement.json").read_text(encoding="utf-8"))  # printed texts are those of the file
    write_measurements(building / MEASUREMENTS, released)
    write_measurements_stata(building / MEASUREMENTS, released.job)
    write_model_tables(building, released)
    write_workbook(building / "tables.xlsx", released.job, (form for form, _ in tables), written)
    write_codebook(building / "codebook.json", released.job, tables)
    write_ddi(building / "codebook.xml", released.job, written)
    write_registry(building / "registry.yaml", released.job, written)
    write_sdmx(building / "sdmx", released.job, tables, written)
    write_page(building / "index.html", released.job, tables, written)
    entries = manifest(building, released, written.get("withheld"))
    (building / MANIFEST).write_bytes(entries)
    if _signed(public) and (public / MANIFEST).read_bytes() == entries:
        shutil.copyfile(public / SIGNATURE, building / SIGNATURE)
    if (public / UNFIT).exists() and not unfit:
        unfit = (public / UNFIT).read_text(encoding="utf-8")
    if unfit:
        write_text(building / UNFIT, unfit)
    swap_in(building, public)


def _return_memory_of_many_rows(released: ReleasedObject) -> None:
    """Returns memory after a stage that has freed much, which later ones do not need."""
    if len(released.crosstab) >= MANY_ROWS:
        return_memory()


def _signed(public: Path) -> bool:
    return all((public / name).is_file() and not (public / name).is_symlink() for name in (MANIFEST, SIGNATURE))


class _TableFigures(NamedTuple):
    """A table's files by the end of their names, predicted errors, and variances by noise alone by outcome and cells."""

    files: Mapping[str, bytes]
    beyond: OfTable
    noise: NoiseParts


def _figures_of(
    released: ReleasedObject,
    grounds: Mapping[str, Grounds],
    material: Material | None,
    within: Mapping[str, Within],
    spec: Table,
) -> _TableFigures:
    """The figures of a table."""
    cells = released.cells(spec)
    rows = without_empty_figures(released.job, spec, table(released, spec, grounds, material))
    beyond = beyond_direct(released, spec, grounds, within)
    far = far_off_in(entry({spec.name: beyond} if beyond else {}), spec.name)
    spreads = {name: ground.spread for name, ground in grounds.items() if ground.spread is not None}
    noise = {(name, cells_key(cells)): take_noise(cells, spread) for name, spread in spreads.items()}
    parquet, text = io.BytesIO(), io.BytesIO()
    pq.write_table(rows, parquet)
    pa_csv.write_csv(for_spreadsheets(rows), text)
    wide = wide_text(printed_table(released.job, spec, rows, far, released.crosstab)).encode()
    files = {"parquet": parquet.getvalue(), "csv": text.getvalue(), "wide.csv": wide}
    return _TableFigures(files, beyond, {key: parts for key, parts in noise.items() if parts})


def _write_tables(
    released: ReleasedObject, folder: Path, grounds: dict[str, Grounds], material: Material | None, listener: Listener
) -> tuple[WrittenTables, Ratios]:
    """Writes all tables; returns them, and predicted errors above FAR. Workers share tables without further statistics."""
    folder.mkdir()
    _return_memory_of_many_rows(released)
    job, beyond, noise = released.job, dict[str, OfTable](), dict[tuple[str, CellsKey], Sequence[Floats]]()
    with stage(listener, "tables", len(job.tables)) as tick:
        within = within_cells(released, grounds)
        results: Iterator[_TableFigures]
        if job.plain:
            results = share_out(partial(_figures_of, released.without_records, grounds, None, within), job.tables)
        else:
            results = map(partial(_figures_of, released, grounds, material, within), job.tables)
        del grounds, material, within  # workers read the draws from a file
        for spec, figures in zip(job.tables, results, strict=True):
            for end, content in figures.files.items():
                (folder / f"{spec.name}.{end}").write_bytes(content)
            if figures.beyond:
                beyond[spec.name] = figures.beyond
            noise.update(figures.noise)
            tick(1)
    remember_noise(released, noise)
    return written_tables(job, folder, released.crosstab, entry(beyond)), beyond


def grounds_of(
    released: ReleasedObject,
    building: Path,
    listener: Listener = silent,
    by_batch: ByBatch = run_here,
    *,
    records: bool = True,
) -> tuple[dict[str, Grounds], Material | None]:
    """Writes the synthetic records; returns the inputs of estimates by outcome, and the input of further statistics.

    Tables with released figures have no records and no further statistics. Without `records`, nothing is written if
    parameters give counts, means and totals, which are then the only estimates.
    """
    model = released.model(0)
    if supports(model, "noise_of_count"):
        with stage(listener, "standard errors", 1) as tick:
            noised = NoisedTables.of(released, model)
            tick(1)
        return {released.job.outcomes[0]: Grounds(None, (), None, noised=noised)}, None
    strata, folder = len(released.crosstab.stratum_labels), building / "synthetic"
    outcomes = released.job.outcomes
    sums: Sequence[Sequence[PsuSums]] = [()] * len(outcomes)
    by_outcome: Sequence[Sequence[Expected] | None] = [None] * len(outcomes)
    if records or not supports(model, "expect"):
        with stage(listener, "synthetic records", strata) as tick:
            sums, expected_of_rows = synthesize(released, folder, tick, by_batch)
        by_outcome = expected_of_rows or by_outcome
        write_microdata(folder, released.job)
    else:
        by_outcome = [expectations(released, j) for j in range(len(outcomes))]
    with stage(listener, "standard errors", strata) as tick:
        spread, laws_of_strata = simulate_errors(released, tick, by_batch)
    grounds = {
        name: Grounds(by_outcome[j], sums[j], None if spread is None else spread[j], j) for j, name in enumerate(outcomes)
    }
    expected = [pairs for pairs in by_outcome if pairs is not None]
    return grounds, Material(released, expected or None, spread, laws_of_strata, folder)
