"""First releases: the file of the tutorial "my own file", and simulated files beside the best settings by hand.

`pytest -m slow -s tests/studies/test_first_year.py` prints the table of docs/explanation/accuracy.md again.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from first_year import FILES, RECORDS, job_text, rows_of
from pages import ROOT, blocks

import dpdist
from dpdist.core.keys import Key
from dpdist.core.records import TOTAL
from dpdist.opening.results import open_evaluation
from dpdist.quality.summary import NO_FAULT, NOT_ACCURATE, by_statistic, overall
from dpdist.quality.verdict import FAR_MEDIAN, NOMINAL

pytestmark = pytest.mark.slow

DRAWS = 2
HELD = 0.85
GOOD = ("histograms by region", "histograms, ε = 3")
"""Ways whose intervals hold what is asked of a first release; docs/explanation/accuracy.md says what the others hold."""
PAGE = ROOT / "docs" / "tutorials" / "my-own-file.md"


def jobs() -> dict[str, str]:
    """The page's jobs, at ε = 1 and as they stand; the first with a stratum a region too."""
    files = {block.file: block.text for block in blocks(PAGE) if block.file is not None}
    own, low = files["incomes.yaml"], ('"3"', '"1"')
    one = own.replace(*low).replace('"0.9"', '"0.3"')
    return {
        "histograms": one,
        "histograms by region": one.replace("outcome: income", "strata: [region]\noutcome: income"),
        "laplace_strict": files["strict.yaml"].replace(*low),
        "histograms, ε = 3": own,
        "laplace_strict, ε = 3": files["strict.yaml"],
    }


@pytest.mark.parametrize("name", jobs())
def test_a_first_release_is_as_good_as_its_first_line_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Printed: errors in direct standard errors and coverage.

    The page's own job, and histograms by region, hold .85 of direct estimates over both draws; at 90 % fewer of 30 cells
    have a probability below .2 a statistic, and the intervals are wider than that here. The first line says "no fault" only
    where intervals hold .9 and the median error is small.
    """
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shares = defaultdict[str, list[float]](list)
    exec(next(block.text for block in blocks(PAGE) if block.language == "python"), names)
    for draw in range(DRAWS):
        dpdist.run(dpdist.parse_job(jobs()[name]), tmp_path / f"{draw}", counted=False)
        rows = open_evaluation(tmp_path / f"{draw}")["incomes"].assign(synthetic_noise_se=float("nan"))
        head = overall({"incomes": rows}).head
        for statistic, group in by_statistic(rows):
            error = group["synthetic_error_in_se"]
            held = ((group["synthetic_lower"] <= group["direct"]) & (group["direct"] <= group["synthetic_upper"])).mean()
            print(f"{name}, {statistic}: {error.median():.2f} / {error.max():.1f}, held {held:.2f}")
            shares[statistic].append(float(held))
            if error.median() > FAR_MEDIAN:
                assert head.startswith((NOT_ACCURATE, "do not publish", "not as good as it says"))
            if head == NO_FAULT:
                assert held >= NOMINAL, statistic
                assert error.median() <= FAR_MEDIAN, statistic
        print(f"  {head}")
    if name in GOOD:
        for statistic, each in shares.items():
            assert sum(each) / DRAWS >= HELD, (statistic, each)


SAMPLES = 6
BY_CLASS = "bounds by class"
"""A job for every kind, with bounds at quantiles of its own records, which cost nothing here; kinds are disjoint."""
BY_HAND = ("strata", "a sixth for histograms", BY_CLASS, f"{BY_CLASS}; laplace_strict")
BOUNDED = 0.999
LABELS = ["kind", "region", "statistic"]


def hand_jobs(name: str, how: str, rows: pd.DataFrame, folder: Path) -> dict[str, str]:
    """Jobs of one way to release a file, by the kind that each releases; "" where it releases all."""
    paths = f"input: {{path: {folder}/now.parquet}}\n"
    if not how.startswith(BY_CLASS):
        reference = 'reference: {histogram: {epsilon: "1/6"}}\n' if how.startswith("a sixth") else ""
        return {"": job_text(name, paths, reference, strata="strata: [kind]\n" if how == "strata" else "")}
    made = {}
    for kind, of_kind in rows.groupby("kind"):
        top, high = (float(of_kind[column].quantile(BOUNDED)) for column in ("income", "weight"))
        text = job_text(name, paths + f"universe: [{{column: kind, keep: [{kind}]}}]\n")
        text = text.replace(f"[0, {FILES[name].top}]", f"[0, {top:.0f}]").replace(
            "[k0, k1, k2, k3, k4, k5, k6, k7]", f"[{kind}]"
        )
        low, most = FILES[name].weights
        text = text.replace(f"[{low}, {most}]", f"[{low}, {high:.1f}]").replace("by: [kind, region]", "by: [region]")
        made[str(kind)] = text.replace("reference_tables", "laplace_strict") if how.endswith("strict") else text
    return made


def cells_of(name: str, how: str, sample: int, folder: Path) -> pd.DataFrame:
    """Base cells of one release: published and direct figure of the file as it came, its standard error, and interval."""
    folder.mkdir()
    rows, made = rows_of(name, 50 + sample), list[pd.DataFrame]()
    rows.to_parquet(folder / "now.parquet")
    for kind, text in hand_jobs(name, how, rows, folder).items():
        job = dpdist.parse_job(text)
        dpdist.run(job, folder / f"ws{kind}", study=Key(bytes(32)).child(f"{name} {sample} {kind}"))
        cells = open_evaluation(folder / f"ws{kind}")["incomes"]
        made.append(cells.assign(kind=kind) if kind else cells)
    cells = pd.concat(made)
    return cells[(cells[["kind", "region"]] != "Total").all(axis=1)].assign(sample=sample)


def true_figures(name: str) -> pd.DataFrame:
    """Expected counts and mean outcomes of base cells, from a million further records."""
    rows = pd.concat([rows_of(name, 1000 + seed) for seed in range(50)])
    sums = (
        rows.assign(product=rows["weight"] * rows["income"]).groupby(["kind", "region"])[["weight", "product"]].agg("sum")
    )
    number = rows.groupby(["kind", "region"]).size()
    return pd.DataFrame({"count": sums["weight"] * RECORDS / number.sum(), "income": sums["product"] / sums["weight"]})


@pytest.mark.parametrize("name", FILES)
def test_a_first_release_without_settings_is_as_good_as_by_hand(name: str, tmp_path: Path) -> None:
    """Printed: errors in direct standard errors of the file as it came, median (largest) of base cells, and intervals.

    `wide` is the mean width of 90 % intervals over that of ± 1.645 root mean squared errors about the truth. Asserted: the
    median error without settings is at most 1.5 times that of the best way, which was chosen afterwards; 1.3 is wanted.
    """
    truth, medians = true_figures(name), defaultdict[str, dict[str, float]](dict)
    for way, how in enumerate(("no setting", *BY_HAND)):
        cells = pd.concat([cells_of(name, how, k, tmp_path / f"{way}-{k}") for k in range(SAMPLES)])
        cells = cells.merge(truth.reset_index(), on=["kind", "region"])
        for statistic, group in cells.groupby("statistic"):
            true = group["count" if statistic == "count" else "income"]
            low, high = group["synthetic_lower"], group["synthetic_upper"]
            error, held = group["synthetic_error_in_se"].abs(), ((low <= true) & (true <= high)).mean()
            needed = 2 * 1.645 * ((group["synthetic"] - true) ** 2).groupby([group["kind"], group["region"]]).mean() ** 0.5
            wide = ((high - low).groupby([group["kind"], group["region"]]).mean() / needed).median()
            medians[str(statistic)][how] = float(error.median())
            line = f"{error.median():.2f} ({error.max():.1f}), held {held:.2f}, wide {wide:.1f}"
            print(f"{name}, {statistic}, {how}: {line}", flush=True)
    for statistic, by_way in medians.items():
        ratio = by_way["no setting"] / min(by_way.values())
        print(f"{name}, {statistic}: {ratio:.2f} of the best, {min(by_way, key=by_way.__getitem__)}", flush=True)
        assert ratio < 1.5


RUNS = 20


@pytest.mark.parametrize("name", ["classes", "zeros"])
def test_figures_of_all_records_are_within_two_published_errors(name: str, tmp_path: Path) -> None:
    """Twenty files of a law, at ε = 1 and without any setting; printed: the lean in direct standard errors.

    18 of 20 are asked for. 17 means of `classes` were, and all other figures were in 18 or more. The test fails below 16.
    Control: a quarter of these errors does not reach 18.
    """
    job = dpdist.parse_job(job_text(name, reference='reference: {histogram: {epsilon: "0.3"}}\n'))
    z = defaultdict[str, list[float]](list)
    for run in range(RUNS):
        rows_of(name, 100 + run).to_parquet(tmp_path / "now.parquet")
        key = Key(bytes(32)).child(f"lean {name} {run}")
        dpdist.run(job, tmp_path / f"{run}", input=tmp_path / "now.parquet", study=key)
        table = open_evaluation(tmp_path / f"{run}")["incomes"]
        whole = table[(table[["kind", "region"]] == TOTAL).all(axis=1)].set_index("statistic")
        off = whole["synthetic"] - whole["direct"]
        for statistic in whole.index:
            z[f"{statistic}, published"].append(off[statistic] / whole.loc[statistic, "synthetic_se"])
            z[f"{statistic}, direct"].append(off[statistic] / whole.loc[statistic, "direct_se"])
    for measure, off_by in z.items():
        values = pd.Series(off_by)
        print(f"{name}, {measure}: lean {values.mean():.2f} ± {values.sem():.2f}, within 2: {(values.abs() <= 2).sum()}")
    for measure in (kind for kind in z if kind.endswith("published")):
        within = (pd.Series(z[measure]).abs() <= 2.0).sum()
        assert within >= 16, (measure, z[measure])
    assert any((pd.Series(z[kind]).abs() <= 0.5).sum() < 18 for kind in z if kind.endswith("published"))
