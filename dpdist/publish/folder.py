"""Writes the public folder from the released object alone: builds it in another folder, then swaps it in.

The manifest is written last.
"""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dpdist.core.files import sha256, write_json, write_text
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.public_files import FORMAT, MANIFEST, SIGNATURE, UNFIT, canonical, release_id
from dpdist.models.outputs import NoisedFigures
from dpdist.publish.further_statistics import Material
from dpdist.publish.model_outputs import FILE as MEASUREMENTS
from dpdist.publish.model_outputs import write_measurements, write_model_tables
from dpdist.publish.noisy_figures import NoisedTables
from dpdist.publish.predicted_errors import beyond_direct
from dpdist.publish.printed_tables import PrintedTable, printed_table
from dpdist.publish.public_bounds import expectations
from dpdist.publish.released import ReleasedObject, write_release
from dpdist.publish.standard_errors import laws, spreads_under
from dpdist.publish.statement import statement
from dpdist.publish.swapping import aside, swap_in
from dpdist.publish.synthesis import synthesize
from dpdist.publish.tables import Grounds, table
from dpdist.publish.writers.codebook import write_codebook
from dpdist.publish.writers.csv_tables import for_spreadsheets, write_wide
from dpdist.publish.writers.ddi import write_ddi
from dpdist.publish.writers.microdata import write_measurements_stata, write_microdata
from dpdist.publish.writers.page import write_page
from dpdist.publish.writers.registry import write_registry
from dpdist.publish.writers.sdmx import write_sdmx
from dpdist.publish.writers.workbook import write_workbook

HASHES = ("sha256", "chain")
"""Keys of a reference's hashes: of its file; or of an earlier release's manifest and of the releases before that one."""
PACKAGES = ("dpdist", "numba", "numpy", "opendp", "pandas", "pyarrow", "randomgen", "scipy")
"""Packages that can change a published number."""


def manifest(folder: Path, release: ReleasedObject) -> bytes:
    """The manifest of a folder that lacks it alone: hashes of files, job, versions, date, and a name derived from these.

    It is canonical JSON (RFC 8785): equal content gives equal bytes, so a signature of the file signs the content.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    reference, date = release.promise.get("reference"), release.promise.get("date")
    said: dict[str, Any] = {
        "format": FORMAT,
        "dataset": release.job.dataset,
        "period": release.job.period,
        **({"date": date} if date is not None else {}),
        "files": {path.relative_to(folder).as_posix(): sha256(path) for path in files},
        **({"reference": {name: reference[name] for name in HASHES if name in reference}} if reference else {}),
        "job": release.job.public,
        **release.job.mechanism.third_party,
        "versions": {name: version(name) for name in PACKAGES},
    }
    return canonical({**said, "release": release_id(said)})


REPLAYED = """This folder was made with --replay, for a test or an audit: it repeats another run's draws.
Publish the folder of that run. Two folders on the same noise, of other data or other code, differ by exact sums.
"""

SIMULATED = """This folder was made for a study: its noise follows from a key, which the study's file gives.
Whoever knows the key can take the noise off. So no guarantee holds for it.
"""


def publish(release: ReleasedObject, public: Path, listener: Listener = silent, unfit: str = "") -> None:
    """Writes the public folder. It spends nothing and reads nothing but `release`; the same release gives the same bytes.

    `unfit` is the reason why the folder is not for publication: it is a replay, or it is held. The reason is written to
    the file `UNFIT`. An existing `UNFIT` stays when the folder is published again. A signature stays if the manifest is
    unchanged.
    """
    building = aside(public)
    if building.exists():
        shutil.rmtree(building)
    building.mkdir(parents=True)
    write_release(building / "released", release)
    grounds, material = _grounds(release, building, listener)
    tables = _write_tables(release, building / "tables", grounds, material, listener)
    write_json(building / "statement.json", statement(release, beyond_direct(release, grounds)))
    said = json.loads((building / "statement.json").read_text(encoding="utf-8"))  # printed texts are those of the file
    write_measurements(building / MEASUREMENTS, release)
    write_measurements_stata(building / MEASUREMENTS, release.job)
    write_model_tables(building, release)
    write_workbook(building / "tables.xlsx", release.job, [form for form, _ in tables], said)
    write_codebook(building / "codebook.json", release.job, tables)
    write_ddi(building / "codebook.xml", release.job, said)
    write_registry(building / "registry.yaml", release.job, said)
    write_sdmx(building / "sdmx", release.job, tables, said)
    write_page(building / "index.html", release.job, tables, said)
    made = manifest(building, release)
    (building / MANIFEST).write_bytes(made)
    if _signed(public) and (public / MANIFEST).read_bytes() == made:
        shutil.copyfile(public / SIGNATURE, building / SIGNATURE)
    if (public / UNFIT).exists() and not unfit:
        unfit = (public / UNFIT).read_text(encoding="utf-8")
    if unfit:
        write_text(building / UNFIT, unfit)
    swap_in(building, public)


def _signed(public: Path) -> bool:
    return all((public / name).is_file() and not (public / name).is_symlink() for name in (MANIFEST, SIGNATURE))


def _write_tables(
    release: ReleasedObject, folder: Path, grounds: dict[str, Grounds], material: Material | None, listener: Listener
) -> list[tuple[PrintedTable, pa.Table]]:
    """Writes every table as Parquet and long CSV, and in its printed form as wide CSV."""
    folder.mkdir()
    found = []
    with stage(listener, "tables", len(release.job.tables)) as tick:
        for said in release.job.tables:
            made = table(release, said, grounds, material)
            pq.write_table(made, folder / f"{said.name}.parquet")
            pa_csv.write_csv(for_spreadsheets(made), folder / f"{said.name}.csv")
            found.append((printed_table(release.job, said, made), made))
            write_wide(folder / f"{said.name}.wide.csv", found[-1][0])
            tick(1)
    return found


def _grounds(release: ReleasedObject, building: Path, listener: Listener) -> tuple[dict[str, Grounds], Material | None]:
    """Writes the synthetic records; returns the inputs of estimates by outcome, and the input of further statistics.

    Tables whose figures were released themselves have no records and no further statistics.
    """
    if isinstance(model := release.model(0), NoisedFigures):
        with stage(listener, "standard errors", 1) as tick:
            noised = NoisedTables.of(release, model)
            tick(1)
        return {release.job.outcomes[0]: Grounds(None, (), None, noised=noised)}, None
    strata, folder = len(release.frame.stratum_labels), building / "synthetic"
    with stage(listener, "synthetic records", strata) as tick:
        sums = synthesize(release, folder, tick)
    write_microdata(folder, release.job)
    with stage(listener, "standard errors", strata) as tick:
        outcomes, known = release.job.outcomes, laws(release, tick)
        spread = spreads_under(release, known)
    told = [expectations(release, j) for j in range(len(outcomes))]
    grounds = {name: Grounds(told[j], sums[j], None if spread is None else spread[j], j) for j, name in enumerate(outcomes)}
    expected = [each for each in told if each is not None]
    return grounds, Material(release, expected or None, spread, known, folder)
