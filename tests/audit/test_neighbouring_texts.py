"""Where sizes are secret, no text of any verb depends on a record: neighbouring files print the same.

Noisy sums are imposed, as in test_non_interference.py, so that published figures are equal. Sizes are swept around every
threshold that a text has: δn = 1, ten PSU codes, small cells, blocks of records, memory and time. Control: where sizes are
public, the same sweep shows each of these. Jobs publish always: whether a verdict holds a release depends on records.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from test_non_interference import Noisy, under
from typer.testing import CliRunner

from dpdist.cli.main import app

JOB = """
dataset: neighbours
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  unit: {{levels: [a, b, c]}}
  salary: {{bounds: [1, 150000], outside: clip}}
  weight: {{bounds: [1, 20], outside: clip}}
survey: {{weight: weight{survey}}}
outcome: salary
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "1", {budget}}}
{more}
publish: always
tables:
  - {{name: salaries, by: [unit], statistics: [count, {{mean: salary}}]}}
runtime: {{executor: serial}}
"""
REFERENCE = "reference: {{path: {folder}/before.parquet, period: '2020', provenance: public-use file of 2020}}"
PROTECTED = 'predictors: {{protect: {{epsilon: "0.3"}}}}'
ADDED, ANYWHERE = "adjacency: add_remove", "adjacency: substitution, exchange: anywhere"
ZCDP = ', delta: "1/1000"'
Keys = Callable[[str], AbstractContextManager[None]]


class Setting(NamedTuple):
    """A mechanism with secret sizes; `zcdp` names it with Gaussian noise, for the neighbours that it has then."""

    mechanism: str
    more: str
    zcdp: str = ""
    zcdp_anywhere: bool = False


BUDGETS = {"add_remove": ADDED, "anywhere": ANYWHERE, "add_remove, zCDP": ADDED + ZCDP, "anywhere, zCDP": ANYWHERE + ZCDP}
SETTINGS = {
    "tables": Setting("tables", REFERENCE, "tables, noise: gaussian", zcdp_anywhere=True),
    "sanitized": Setting(
        "sanitized_statistics",
        f"{PROTECTED}\nmodel: {{{{family: lognormal}}}}\n{REFERENCE}",
        "sanitized_statistics, noise: gaussian",
        zcdp_anywhere=True,
    ),
}
CASES = [
    (name, budget)
    for name, setting in SETTINGS.items()
    for budget, text in BUDGETS.items()
    if "delta" not in text or (setting.zcdp and (setting.zcdp_anywhere or text != BUDGETS["anywhere, zCDP"]))
]
OFTEN = {("tables", "anywhere, zCDP"), ("sanitized", "add_remove")}
"""Both mechanisms, both kinds of neighbours and both laws of noise."""
SELDOM = {("tables", "add_remove"), ("sanitized", "anywhere"), ("sanitized", "add_remove, zCDP")}
"""`long`: with `OFTEN`, every pair of mechanism, neighbours and law of noise. The other combinations are `slow`."""


def marked(case: tuple[str, str], often: bool) -> object:
    """A combination with the mark by which it runs."""
    return pytest.param(*case, marks=[] if often else [pytest.mark.long if case in OFTEN | SELDOM else pytest.mark.slow])


PLANNED = [marked(case, case in OFTEN) for case in CASES]
RUN = [marked(case, False) for case in CASES]
SIZES = [(997, 1, 1), (998, 1, 1), (400, 0, 0), (400, 10, 5), (1, 0, 0), (2**15, 1, 0)]
"""Records of every unit: 999 and 1,000 of them, where δn = 1; small cells; hardly any; a block of them, and one more."""
TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ][\d:.+Z]+|\b[0-9a-f]{12}\b|(?<=in )[\d.,]+ s|\"(?:seconds|silent|left|time)\": ?[\d.]+|"
    r"^.*[\d,]+ s elapsed.*\n|^.*\"event\": \"alive\".*\n",
    re.MULTILINE,
)
"""Parts of texts that follow from the clock, and lines that stand there because time has gone by."""


def survey(sizes: tuple[int, ...], psus: int = 12, seed: int = 0) -> pd.DataFrame:
    """The same records for the same number in a unit: neighbouring sizes give neighbouring files."""
    rows = []
    for unit, number in zip("abc", sizes, strict=True):
        rng = np.random.default_rng([seed, ord(unit)])
        salary, weight = rng.uniform(1e4, 1e5, 2**16), rng.uniform(1.0, 20.0, 2**16)
        rows.append(pd.DataFrame({"unit": unit, "salary": salary[:number], "weight": weight[:number]}))
    file = pd.concat(rows, ignore_index=True)
    return file.assign(psu=[f"p{k % psus}" for k in range(len(file))])


def public_file(folder: Path) -> None:
    survey((900, 700, 500), seed=1).to_parquet(folder / "before.parquet")


def job_file(folder: Path, setting: Setting, budget: str, survey: str = "") -> Path:
    mechanism = setting.zcdp if "delta" in budget else setting.mechanism
    more = setting.more.format(folder=folder)
    file = folder / "job.yaml"
    file.write_text(JOB.format(folder=folder, mechanism=mechanism, budget=budget, more=more, survey=survey))
    return file


def said(*command: str) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(command))
    lines = (line.strip(" #") for line in TIMES.sub("#", done.output).splitlines())
    return "\n".join([str(done.exit_code), *filter(None, lines)])


def unplaced(text: str, work: Path) -> str:
    """The text without the folder's path, which may be broken at any character."""
    return re.sub(r"\s*".join(map(re.escape, str(work))), "WORK", text)


def texts(file: Path, rows: pd.DataFrame, work: Path, noisy: Noisy | None, keys: Keys) -> dict[str, str]:
    """What every verb prints on a file. Without noise to impose, no run is made."""
    rows.to_parquet(file.parent / "now.parquet")
    named = str(file)
    shown = {"plan": said("plan", named)}  # the first one, since later verbs repeat its alarms
    shown |= {
        "validate": said("validate", named),
        "validate --json": said("validate", named, "--json"),
        "plan --json": said("plan", named, "--json"),
        "cluster size": said("cluster", "size", named),
    }
    if noisy is None:
        return shown
    work.mkdir()
    for name, how in {"run": (), "run --json": ("--json",)}.items():
        space, log = work / name, work / f"{name}.log"
        with under(noisy), keys("neighbours"):
            shown[name] = unplaced(said("run", named, "-w", str(space), "--log", str(log), *how), work)
        if shown[name].startswith("0"):
            shown[f"{name}, log"] = TIMES.sub("#", log.read_text())
            for verb in ("status", "report"):
                shown[f"{verb} after {name}"] = unplaced(said(verb, str(space)), work)
            shown[f"{name}, manifest"] = (space / "public" / "manifest.json").read_text()
        noisy.imposing = True
    return shown


def different(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Verbs that print another text, with the first line that differs."""
    lines = []
    for verb in one:
        if one[verb] != other.get(verb):
            pairs = zip(one[verb].splitlines(), other.get(verb, "").splitlines(), strict=False)
            lines.append(f"{verb}: {next((f'{a!r} / {b!r}' for a, b in pairs if a != b), 'other lines')[:400]}")
    return lines


@pytest.mark.parametrize(("name", "budget"), PLANNED)
def test_plans_and_checks_of_neighbouring_files_are_the_same_texts(
    name: str, budget: str, tmp_path: Path, keys_of: Keys
) -> None:
    public_file(tmp_path)
    file = job_file(tmp_path, SETTINGS[name], BUDGETS[budget])
    first, *others = (texts(file, survey(sizes), tmp_path, None, keys_of) for sizes in SIZES)
    assert first["plan"].startswith("0"), first["plan"]
    assert [line for other in others for line in different(first, other)] == []


@pytest.mark.parametrize(("name", "budget"), RUN)
def test_runs_of_neighbouring_files_say_the_same(name: str, budget: str, tmp_path: Path, keys_of: Keys) -> None:
    public_file(tmp_path)
    file, noisy = job_file(tmp_path, SETTINGS[name], BUDGETS[budget]), Noisy()
    first = texts(file, survey((997, 1, 1)), tmp_path / "0", noisy, keys_of)
    assert first["run"].startswith("0"), first["run"]
    others = [(996, 2, 1), (500, 499, 0)] if "anywhere" in budget else [(998, 1, 1), (300, 0, 2)]  # exchanged: n stays
    for number, sizes in enumerate(others, start=1):
        assert different(first, texts(file, survey(sizes), tmp_path / str(number), noisy, keys_of)) == []


@pytest.mark.parametrize("budget", [ADDED, pytest.param(ANYWHERE, marks=pytest.mark.long)])
def test_ten_psu_codes_and_nine_are_told_apart_only_where_sizes_are_public(
    budget: str, tmp_path: Path, keys_of: Keys
) -> None:
    public_file(tmp_path)
    psu = ", psu: psu, lonely_psu: centred"
    sizes = (400, 9, 9)
    for setting in SETTINGS.values():
        file = job_file(tmp_path, setting, budget, psu)
        nine, ten = (texts(file, survey(sizes, psus), tmp_path, None, keys_of) for psus in (9, 10))
        assert nine["plan"].startswith("0"), nine["plan"]
        assert different(nine, ten) == []
    control = job_file(tmp_path, SETTINGS["tables"], "adjacency: zero_out", psu)
    nine, ten = (texts(control, survey(sizes, psus), tmp_path, None, keys_of) for psus in (9, 10))
    assert ["reused_psu_codes" in each["validate"] for each in (nine, ten)] == [True, False], "control"


def test_control_public_sizes_are_told_by_every_verb(tmp_path: Path, keys_of: Keys) -> None:
    public_file(tmp_path)
    setting = Setting("sanitized_statistics", f"model: {{{{family: lognormal}}}}\n{REFERENCE}", SETTINGS["sanitized"].zcdp)
    file = job_file(tmp_path, setting, "adjacency: zero_out" + ZCDP)
    below, at = (texts(file, survey(sizes), tmp_path, None, keys_of) for sizes in ((997, 1, 1), (998, 1, 1)))
    assert {line.partition(":")[0] for line in different(below, at)} >= {"validate", "plan", "plan --json"}
    assert "not below 1/n = 1/1000" in at["plan"]
