"""`dpdist diff`: everything in which two releases differ is named, and figures that moved beyond their errors alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import invoke
from edited_text import edited
from named_draws import named
from small_release import JOB, survey

import dpdist
from dpdist.cli.verify import _with_digits
from dpdist.publish.differences import MovedFigure


def release(folder: Path, name: str, frame: pd.DataFrame, *edits: tuple[str, str]) -> str:
    """A release of the small job with other words in it; the noise is always the same."""
    text = edited(JOB, *edits)
    frame.to_parquet(folder / f"{name}.parquet")
    with named("differences"):
        dpdist.run(dpdist.parse_job(text), folder / name, folder / f"{name}.parquet")
    return str(folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("differences")
    release(made, "first", survey(600))
    return made


def diff(*names: str) -> tuple[int, str]:
    done = invoke("diff", *names)
    return done.exit_code, done.output


def said(*names: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(invoke("diff", *names, "--json").output)
    return found


def named_facts(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {f"{each['part']}: {each['what']}": (each["before"], each["after"]) for each in found["differences"]}


def test_a_release_does_not_differ_from_itself_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "first" / "public", tmp_path / "downloaded")
    code, text = diff(str(folder / "first"), str(tmp_path / "downloaded"))
    assert (code, text) == (0, "figures: 0 of 18 that both releases publish differ by more than 2 standard errors\n")


def test_a_job_with_another_budget_mechanism_constant_and_table(folder: Path) -> None:
    """Each is named once, with what either release says of it."""
    edits = [('"3"', '"2"'), ("[0, 200000]", "[0, 150000]"), ('period: "2021"', 'period: "2022"')]
    more = "tables:\n  - {name: sexes, by: [sex], margins: false, statistics: [count]}\n"
    other = release(folder, "other", survey(600), *edits, ("tables:\n", more), ("[count, {mean: salary}]", "[count]"))
    facts = named_facts(said(str(folder / "first"), other))
    facts.pop("release: release")
    parts = "one synthetic set; parallel over strata, whose membership is public; sequential within a set: "
    parts += "ε₀ = {} for bin counts, ε₁ = {} for the tables"
    assert facts == {
        "release: period": ("2021", "2022"),
        "guarantee: epsilon": ("3", "2"),
        "guarantee: epsilon_per_set": ("3", "2"),
        "guarantee: substitution_epsilon": ("6", "4"),
        "guarantee: composition": (parts.format("0.5", "2.5"), parts.format("1/3", "5/3")),
        "job: columns.salary.bounds": ("0, 200000", "0, 150000"),
        "job: reference.histogram.epsilon": ("0.5", "1/3"),
        "tables: counts": ("count, mean of salary by field, sex, with margins", "count by field, sex, with margins"),
        "tables: sexes": ("none", "count by sex"),
    }
    code, text = diff(str(folder / "first"), other)
    assert code == 1
    assert [line.partition(":")[0] for line in text.splitlines()[:7]] == [*4 * ["guarantee"], *2 * ["tables"], "release"]
    assert "release: id: " in text
    assert "release: release" not in text
    keys = ["job: columns.salary.bounds: 0, 200000 -> 0, 150000", "job: reference.histogram.epsilon: 0.5 -> 1/3"]
    assert text.splitlines()[-2:] == keys, "keys of the job are last"


def test_many_keys_of_a_job_are_counted_and_long_values_cut(folder: Path) -> None:
    """JSON has them whole."""
    levels = ", ".join(f"place{k}" for k in range(30))
    more = "\n".join(f"  c{k}: {{levels: [{levels}]}}" for k in range(20))
    other = release(folder, "wide", survey(600), ("columns:\n", f"columns:\n{more}\n"))
    lines = diff(str(folder / "first"), other)[1].splitlines()
    keys = len([each for each in said(str(folder / "first"), other)["differences"] if each["part"] == "job"])
    assert keys > 20
    assert len([line for line in lines if line.startswith("job: columns.c")]) == 10
    assert lines[-1] == f"job: {keys - 10} more keys differ; --json lists them"
    assert max(map(len, lines)) < 160


def test_figures_that_moved_beyond_their_errors_are_named_and_no_others(folder: Path) -> None:
    """Women's weights in law are doubled: their count, and margins that hold them. Oracle: the published columns."""
    frame = survey(600)
    changed = (frame["field"] == "law") & (frame["sex"] == "f")
    frame.loc[changed, "weight"] = np.minimum(2 * frame.loc[changed, "weight"], 60.0)
    other = release(folder, "weights", frame)
    found = said(str(folder / "first"), other)
    a, b = (dpdist.open_release(place).tables["counts"] for place in (folder / "first", other))
    far = np.abs(b["estimate"] - a["estimate"]) / np.hypot(a["standard_error"], b["standard_error"])
    oracle = {(f"{x} / {y}", round(z, 9)) for x, y, z in zip(a["field"], a["sex"], far, strict=True) if z > 2}
    assert {(each["cell"], round(each["distance"], 9)) for each in found["moved"]} == oracle
    assert ("law / f", "count (parameters)") in {(each["cell"], each["figure"]) for each in found["moved"]}
    assert not {each["cell"] for each in found["moved"]} & {"arts / f", "arts / m", "law / m"}
    assert (found["compared"], len(a)) == (18, 36)  # synthetic records repeat the figures of tables
    every = json.loads(invoke("diff", folder / "first", other, "--beyond", "0", "--json").output)
    assert len(every["moved"]) > len(oracle), "control"


def test_figures_that_one_release_withholds_are_no_changed_ones(folder: Path) -> None:
    """The same figures, of which the other release withholds some. Both directions; control: a release and itself."""
    other = release(folder, "withholding", survey(600), ("strata:", "withhold_above: 0.04\nstrata:"))
    blank = dpdist.open_release(other).tables["counts"].query("estimator == 'parameters' and suppressed")
    for places in ((str(folder / "first"), other), (other, str(folder / "first"))):
        found, text = said(*places), diff(*places)[1]
        assert 0 < len(blank) == len(found["in_one"]) < 18
        assert found["compared"] == 18 - len(blank)
        assert not found["moved"]
        missing = "after" if places[1] == other else "before"
        assert all(figure[missing] is None and figure["distance"] is None for figure in found["in_one"])
        new = len(blank) if missing == "before" else 0
        said_of = (
            f"figures: {len(blank)} in one of the releases alone: {new} newly published, {len(blank) - new} now withheld"
        )
        assert f"figures: 0 of {18 - len(blank)} that both releases publish differ by more than 2 standard errors" in text
        assert said_of in text
        assert "distance" not in text


def test_digits_of_moved_figures_fit_their_standard_errors() -> None:
    """A share beside a count: to the second digit of the difference's standard error."""
    share = MovedFigure("t", "all", "mean of works (parameters)", 0.5234567, 0.5912345, 2.5)
    assert _with_digits(share) == ("0.523", "0.591")
    assert _with_digits(replace(share, before=14_466.2, after=16_321.9, distance=3.0)) == ("14,470", "16,320")
    assert _with_digits(replace(share, before=None, distance=None)) == ("none", "0.5912")
    assert _with_digits(replace(share, before=1.0, after=2.0, distance=None)) == ("1.000", "2.000")


def test_other_versions_are_named(folder: Path, tmp_path: Path) -> None:
    """As a release that another NumPy made."""
    from dpdist.core.public_files import MANIFEST, canonical, release_id

    shutil.copytree(folder / "first" / "public", tmp_path / "public")
    path = tmp_path / "public" / MANIFEST
    made = json.loads(path.read_text())
    made["versions"]["numpy"] = "1.0"
    path.write_bytes(canonical(made | {"release": release_id(made)}))
    facts = named_facts(said(str(folder / "first"), str(tmp_path / "public")))
    assert facts.pop("versions: numpy") == (np.__version__, "1.0")
    assert list(facts) == ["release: release"]


def test_what_is_no_whole_release_is_not_compared(folder: Path, tmp_path: Path) -> None:
    """Its exit code is another one than that of releases that differ."""
    shutil.copytree(folder / "first" / "public", tmp_path / "public")
    (tmp_path / "public" / "tables" / "counts.csv").write_text("forged")
    assert diff(str(folder / "first"), str(tmp_path / "public"))[0] == 2
    assert diff(str(folder / "first"), str(tmp_path / "nowhere"))[0] == 2
