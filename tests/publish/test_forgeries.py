"""A forger changes a release and writes the manifest anew: `dpdist verify` refuses it, or names the fact as not checked.

Every forgery is of files alone, so that all checksums hold. `CONSISTENT` ones publish again from a forged released/: no
reader of the folder can see them, and verify names the file. Control: without an edit, every release is whole.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from named_draws import named
from small_jobs import cases
from small_runs import run
from test_verify import vouch

from dpdist.core.public_files import MANIFEST
from dpdist.opening.verifying import verify_folder
from dpdist.publish.folder import publish
from dpdist.publish.released import read_released

PACKAGE, HISTOGRAMS, SECRET = (
    "tables-zero_out-residuals",
    "tables-histogram",
    "tables-add_remove-residuals",
)
MODIPS, DRAWS, CELLS = "modips-bounded", "weighted-zero_out-lognormal", "laplace_composed-public"
Forger = Callable[[Path], object]
MEASURED, SET, PROMISE, STATEMENT = "measurements.parquet", "released/set-1.json", "released/promise.json", "statement.json"


@pytest.fixture(scope="module")
def releases(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("releases")
    for name in (PACKAGE, HISTOGRAMS, SECRET, MODIPS, DRAWS, CELLS):
        with named(name):
            run(name, cases()[name], inputs, folder / name)
    return folder


def edited(name: str, edit: Callable[[dict[str, Any]], object]) -> Forger:
    def forge(public: Path) -> None:
        content = json.loads((public / name).read_text())
        edit(content)
        (public / name).write_text(json.dumps(content))

    return forge


def both(edit: Callable[[dict[str, Any]], object]) -> Forger:
    """In promise and statement alike."""
    return lambda public: [edited(name, edit)(public) for name in (PROMISE, STATEMENT)]


def rows(name: str, edit: Callable[[pd.DataFrame], pd.DataFrame]) -> Forger:
    """Other rows of a Parquet file of the same columns and metadata."""

    def forge(public: Path) -> None:
        table = pq.read_table(public / name)
        made = edit(table.to_pandas())
        arrays = [pa.array(made[field.name], field.type, from_pandas=True) for field in table.schema]
        pq.write_table(pa.Table.from_arrays(arrays, schema=table.schema), public / name)

    return forge


def times(column: str, factor: float) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda table: table.assign(**{column: table[column] * factor})


def text(name: str, old: str, new: str) -> Forger:
    def forge(public: Path) -> None:
        content = (public / name).read_text(encoding="utf-8")
        assert old in content, name
        (public / name).write_text(content.replace(old, new), encoding="utf-8")

    return forge


def first(public: Path, pattern: str) -> str:
    return next(path.relative_to(public).as_posix() for path in sorted(public.glob(pattern)))


def without(name: str) -> Forger:
    return lambda public: (public / name).unlink()


def little_noise(table: pd.DataFrame) -> pd.DataFrame:
    """V1: sums of a package at 16 steps of noise, as its histograms have."""
    sums = ~table["statistic"].str.startswith("count in bins")
    assert sums.any()
    assert not sums.all()
    return table.assign(scale=np.where(sums, 16.0 * table["lattice"], table["scale"]))


def one_table(table: pd.DataFrame) -> pd.DataFrame:
    """V2: every part at the noise of the whole budget, under one name of a table."""
    return table.assign(table="one", scale=table["scale"].min() / 8.0)


def whole_parts(described: dict[str, Any]) -> None:
    """Parts of the tables, in the released object itself: each has the whole budget."""
    for stratum in described["strata"].values():
        assert len(stratum["parts"]) > 1
        stratum["parts"] = dict.fromkeys(stratum["parts"], "1")


def scaled(value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {key: scaled(one, factor) for key, one in value.items()}
    if isinstance(value, list):
        return [scaled(one, factor) for one in value]
    return value * factor if isinstance(value, float) else value


def numbers(factor: float) -> Forger:
    return edited(SET, lambda described: described.update(strata=scaled(described["strata"], factor)))


def smallest_moved(table: pd.DataFrame) -> pd.DataFrame:
    values = table["estimate"].to_numpy(copy=True)
    values[np.nanargmin(np.abs(values))] *= 1.0001
    return table.assign(estimate=values)


def whole_number_moved(page: Path) -> None:
    """The last digit of the first number with a comma, such as 1,234."""
    content = page.read_text(encoding="utf-8")
    found = re.search(r">(\d{1,3}(?:,\d{3})+)<", content)
    assert found is not None
    digit = "1" if found[1][-1] == "0" else "0"
    page.write_text(content.replace(found[0], f">{found[1][:-1]}{digit}<", 1), encoding="utf-8")


def downgraded(public: Path) -> None:
    (public / "released" / "proof.json").unlink()
    both(lambda stated: stated.update(protected_by="0.1.1"))(public)
    rows(MEASURED, times("scale", 1e-6))(public)


def of_the_job(edit: Callable[[dict[str, Any]], object]) -> Forger:
    return edited("released/job.json", edit)


FORGERIES: dict[str, tuple[str, Forger]] = {
    "V1: little noise on sums": (HISTOGRAMS, rows(MEASURED, little_noise)),
    "V2: one name for all parts": (PACKAGE, rows(MEASURED, one_table)),
    "every row twice": (PACKAGE, rows(MEASURED, lambda table: pd.concat([table, table]))),
    "every row twice, of sums of cells": (CELLS, rows(MEASURED, lambda table: pd.concat([table, table]))),
    "rows dropped": (PACKAGE, rows(MEASURED, lambda table: table.iloc[:-3])),
    "measurements dropped": (PACKAGE, without(MEASURED)),
    "noisy figures reversed": (PACKAGE, rows(MEASURED, lambda table: table.assign(value=table["value"].to_numpy()[::-1]))),
    "noisy figures without a scale": (PACKAGE, rows(MEASURED, lambda table: table.assign(scale=np.nan))),
    "noise of another statistic": (MODIPS, rows(MEASURED, lambda table: table.assign(scale=table["scale"].min() * 0.9))),
    "scales of statistics exchanged": (
        MODIPS,
        rows(MEASURED, lambda table: table.assign(statistic=table["statistic"].replace("v u", "1 - v"))),
    ),
    "downgrade of a package": (PACKAGE, downgraded),
    "downgrade of cell sums": (CELLS, downgraded),
    "table figures times 3": (
        PACKAGE,
        lambda public: rows(first(public, "tables/*.parquet"), times("estimate", 3.0))(public),
    ),
    "the smallest figure of a table, by a ten-thousandth": (
        PACKAGE,
        lambda public: rows(first(public, "tables/*.parquet"), smallest_moved)(public),
    ),
    "a whole number on the page, by one": (PACKAGE, lambda public: whole_number_moved(public / "index.html")),
    "a standard error of a table": (
        DRAWS,
        lambda public: rows(first(public, "tables/*.parquet"), times("standard_error", 0.5))(public),
    ),
    "a figure of the CSV table": (
        CELLS,
        lambda public: (public / first(public, "tables/*.wide.csv")).write_text("a,b\n1,2\n"),
    ),
    "the page": (PACKAGE, text("index.html", "</title>", ", certified</title>")),
    "the workbook": (PACKAGE, lambda public: (public / "tables.xlsx").write_bytes(b"PK\x05\x06" + bytes(18))),
    "the codebook": (CELLS, text("codebook.json", '"', ' "')),
    "synthetic records": (DRAWS, rows("synthetic/set-1.parquet", lambda table: table.iloc[::-1])),
    "synthetic records dropped": (PACKAGE, rows("synthetic/set-1.parquet", lambda table: table.iloc[:-1])),
    "noisy figures of the released object": (PACKAGE, numbers(1.01)),
    "draws": (DRAWS, numbers(1.001)),
    "shares above the budget": (PACKAGE, edited(SET, whole_parts)),
    "secret sizes": (
        SECRET,
        rows("released/frame.parquet", lambda table: table.assign(count=table["count"].to_numpy()[::-1])),
    ),
    "frame": (CELLS, rows("released/frame.parquet", lambda table: table.assign(count=table["count"] + 1))),
    "donors": (PACKAGE, rows("released/donors.parquet", lambda table: table.iloc[:-1])),
    "donors dropped": (PACKAGE, without("released/donors.parquet")),
    "bounds": (
        PACKAGE,
        of_the_job(lambda job: job["columns"]["salary"].update(bounds=[0, job["columns"]["salary"]["bounds"][1] / 2])),
    ),
    "seed": (CELLS, lambda public: (public / "released" / "seed").write_text(f"{'cd' * 32}\n")),
    "guarantee_in_words": (PACKAGE, edited(STATEMENT, lambda stated: stated.update(guarantee_in_words="ε = 0.01"))),
    "guarantee_in_words by the promise": (PACKAGE, both(lambda stated: stated.update(guarantee_in_words="ε = 0.01"))),
    "not_protected emptied": (PACKAGE, edited(STATEMENT, lambda stated: stated.update(not_protected=[]))),
    "not_protected emptied by the promise": (PACKAGE, both(lambda stated: stated.update(not_protected=[]))),
    "assumptions emptied": (PACKAGE, both(lambda stated: stated.update(assumptions=[]))),
    "composition": (CELLS, both(lambda stated: stated.update(composition="none is needed"))),
    "cautions emptied": (DRAWS, edited(STATEMENT, lambda stated: stated.update(cautions=[]))),
    "sampler": (CELLS, edited(STATEMENT, lambda stated: stated["sampler"].update(total_variation=0.5))),
    "domain": (CELLS, edited(STATEMENT, lambda stated: stated.update(domain=[]))),
    "headline": (CELLS, edited(STATEMENT, lambda stated: stated.update(headline="it protects everything"))),
    "an entry of the statement dropped": (CELLS, edited(STATEMENT, lambda stated: stated.pop("trust_model"))),
    "other releases": (PACKAGE, edited(STATEMENT, lambda stated: stated.update(other_releases="They cost nothing."))),
    "the manifest's job": (CELLS, lambda public: vouch(public, job={})),
    "the manifest's date": (CELLS, lambda public: vouch(public, date="1999-01-01")),
    "a file more": (CELLS, lambda public: (public / "tables" / "more.csv").write_text("a\n")),
}


@pytest.fixture
def public(releases: Path, tmp_path: Path) -> Callable[[str], Path]:
    def copied(name: str) -> Path:
        return Path(shutil.copytree(releases / name / "public", tmp_path / "public"))

    return copied


@pytest.mark.parametrize("name", [PACKAGE, HISTOGRAMS, SECRET, MODIPS, DRAWS, CELLS])
def test_control_releases_are_whole_and_say_what_nothing_confirms(name: str, public: Callable[[str], Path]) -> None:
    found = verify_folder(public(name))
    assert found.problems == []
    listed = {line.partition(":")[0] for line in found.unchecked}
    assert listed >= {"released/job.json", PROMISE, "released/frame.parquet", "released/seed", SET, MANIFEST}
    assert ("released/donors.parquet" in listed) == (name in (PACKAGE, SECRET))


@pytest.mark.parametrize("how", FORGERIES)
def test_a_forgery_is_refused(how: str, public: Callable[[str], Path]) -> None:
    name, forge = FORGERIES[how]
    folder = public(name)
    forge(folder)
    if "manifest" not in how:
        vouch(folder)
    assert verify_folder(folder).problems != []


def moved(value: Any) -> Any:
    """Whole numbers, as noisy sums are, each one more."""
    if isinstance(value, dict):
        return {key: moved(one) for key, one in value.items()}
    if isinstance(value, list):
        return [moved(one) for one in value]
    return value + 1.0 if isinstance(value, float) else value


CONSISTENT: dict[str, tuple[str, Forger, str]] = {
    "seed": (CELLS, FORGERIES["seed"][1], "released/seed"),
    "noisy figures": (CELLS, edited(SET, lambda described: described.update(strata=moved(described["strata"]))), SET),
    "frame": (CELLS, FORGERIES["frame"][1], "released/frame.parquet"),
    "sampler": (CELLS, both(lambda stated: stated["sampler"].update(total_variation=0.5)), PROMISE),
    "day": (CELLS, edited(PROMISE, lambda stated: stated.update(date="1999-01-01")), PROMISE),
}


@pytest.mark.parametrize("how", CONSISTENT)
def test_a_forgery_that_is_published_again_is_named(how: str, public: Callable[[str], Path]) -> None:
    name, forge, file = CONSISTENT[how]
    folder = public(name)
    before = (folder / MANIFEST).read_bytes()
    forge(folder)
    vouch(folder)
    publish(read_released(folder / "released"), folder)
    found = verify_folder(folder)
    assert (folder / MANIFEST).read_bytes() != before
    assert found.problems == []
    assert any(line.startswith(f"{file}:") for line in found.unchecked)


@pytest.mark.parametrize("name", [PACKAGE, HISTOGRAMS])
def test_shares_above_the_budget_are_refused_though_all_else_follows(
    name: str, public: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdist.mechanisms.tables.cells.ALIKE", 1e9)  # other shares have other limits
    folder = public(name)
    edited(SET, whole_parts)(folder)
    vouch(folder)
    publish(read_released(folder / "released"), folder)
    assert any("of query 'sums of residuals by tables' cells'" in line for line in verify_folder(folder).problems)


def test_a_folder_of_other_versions_is_compared_and_each_difference_is_named(public: Callable[[str], Path]) -> None:
    folder = public(CELLS)
    stated = json.loads((folder / MANIFEST).read_text())["versions"]
    vouch(folder, versions=stated | {"dpdist": "0.1.7"})
    assert verify_folder(folder).problems == []
    table = first(folder, "tables/*.parquet")
    rows(table, times("estimate", 3.0))(folder)
    vouch(folder)
    found = verify_folder(folder)
    assert found.problems == []
    assert any(line.startswith(f"that {table} is as this version makes it") for line in found.unchecked)
