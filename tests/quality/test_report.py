"""What `report` and the end of `run` say of a release's accuracy, and who reads it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from command_line import invoke, succeed
from rich.console import Console

import dpdist
from dpdist.cli.custodian import evaluation_text
from dpdist.job import Job
from dpdist.quality.errors import number_of_statistics
from dpdist.quality.summary import brief, overall, verdicts

TOP = 60000.0


def survey(seed: int = 1, n: int = 900) -> pd.DataFrame:
    """Nobody is of theology, one record of law. Weights are one within every region."""
    rng = np.random.default_rng(seed)
    region = rng.choice(["n", "s", "w"], n)
    field = np.where(np.arange(n) == 0, "law", rng.choice(["arts", "medicine"], n))
    return pd.DataFrame(
        {
            "region": region,
            "field": field,
            "salary": np.exp(rng.normal(10.8, 0.6, n)),
            "weight": pd.Series(region).map({"n": 10.1, "s": 33.3, "w": 70.7}).to_numpy() * 1.1,
        }
    )


JOB: dict[str, Any] = {
    "dataset": "tiny",
    "publish": "always",
    "period": "2020",
    "columns": {
        "region": {"levels": ["n", "s", "w"]},
        "field": {"levels": ["arts", "law", "medicine", "theology"]},
        "salary": {"bounds": [0, TOP], "outside": "clip"},
        "weight": {"bounds": [1, 100], "outside": "clip"},
    },
    "survey": {"weight": "weight", "design_strata": ["region"]},
    "outcome": "salary",
    "mechanism": {"name": "tables"},
    "budget": {"epsilon": "50"},
    "tables": [
        {"name": "pay", "by": ["field"], "margins": True, "statistics": ["count", {"mean": "salary"}]},
        {"name": "regions", "by": ["region"], "margins": False, "statistics": ["count", {"mean": "salary"}]},
    ],
    "compare": ["laplace", "laplace_composed"],
    "public_frame": {"accepted": "simulated records"},
    "runtime": {"executor": "serial"},
}


def evaluation(workspace: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(workspace / "confidential" / "evaluation" / f"{name}.parquet")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reported")
    survey().to_parquet(folder / "survey.parquet")
    dpdist.run(Job.model_validate(JOB), folder / "ws", folder / "survey.parquet")
    return folder / "ws"


def test_errors_are_against_the_file_before_clipping_and_clipping_stands_apart(finished: Path) -> None:
    rows, found = survey(), evaluation(finished, "pay").set_index(["field", "statistic", "variable"])
    for field, own in [("arts", rows[rows["field"] == "arts"]), ("Total", rows)]:
        raw = np.average(own["salary"], weights=own["weight"])
        clipped = np.average(own["salary"].clip(upper=TOP), weights=own["weight"])
        mine = found.loc[(field, "mean", "salary")]
        assert (mine["direct"], mine["direct_clipped"]) == pytest.approx((raw, clipped))
        assert mine["clipping_error_in_se"] == pytest.approx((raw - clipped) / mine["direct_se"])
        assert mine["synthetic_error_in_se"] == pytest.approx(abs(mine["synthetic"] - raw) / mine["direct_se"])
        assert mine["clipping_error_in_se"] > 3, "the case does not clip: it shows nothing"
    counts = found.xs("count", level="statistic")
    assert (counts["direct"] == counts["direct_clipped"]).all()


def test_a_yardstick_is_clipped_as_the_release_is(finished: Path) -> None:
    """Noise at ε = 50 is small: what `laplace` errs by is what clipping does."""
    mine = evaluation(finished, "pay").set_index(["field", "statistic", "variable"]).loc[("Total", "mean", "salary")]
    assert abs(mine["laplace"] - mine["direct_clipped"]) < 0.3 * abs(mine["direct_clipped"] - mine["direct"])


def test_a_design_that_fixes_a_count_leaves_no_unit_for_errors(finished: Path) -> None:
    """Weights are one within a stratum: the counts of strata have no sampling error, so no multiple of it is told."""
    rows = evaluation(finished, "regions")
    counts = rows[rows["statistic"] == "count"]
    assert (counts["direct_se"] == 0).all()
    assert counts["synthetic_error_in_se"].isna().all()
    assert (rows.loc[rows["statistic"] == "mean", "direct_se"] > 0).all()
    text = " ".join(dpdist.report(finished, confidential=True).split())
    assert "3 of 3 cells without such an error: a direct standard error of 0, because the design fixes the figure" in text


def test_counts_have_errors_in_both_scales_and_the_report_names_the_one_used(tmp_path: Path) -> None:
    """By hand: without design strata a count's error as designed holds the chance in its cell's number of records."""
    rows, n = survey(), 900
    rows["weight"] *= np.exp(np.random.default_rng(2).normal(0.0, 0.2, n))
    rows.to_parquet(tmp_path / "survey.parquet")
    said = {
        **JOB,
        "survey": {"weight": "weight"},
        "tables": [{**JOB["tables"][0], "by": ["region", "field"]}],
        "compare": [],
    }
    dpdist.run(Job.model_validate(said), tmp_path / "ws", tmp_path / "survey.parquet")
    found = evaluation(tmp_path / "ws", "pay")
    counts = found[found["statistic"] == "count"].set_index(["region", "field"])
    for region, field in [("n", "arts"), ("s", "medicine")]:
        own = rows[(rows["region"] == region) & (rows["field"] == field)]["weight"]
        designed = n / (n - 1) * ((own**2).sum() - own.sum() ** 2 / n)
        assert counts.loc[(region, field), "direct_se"] == pytest.approx(np.sqrt(designed))
        assert counts.loc[(region, field), "direct_se_given_n"] == pytest.approx(np.sqrt(len(own) * own.var()))
        assert counts.loc[(region, field), "direct_se"] > 2 * counts.loc[(region, field), "direct_se_given_n"]
    text = dpdist.report(tmp_path / "ws", confidential=True)
    given = (counts["synthetic"] - counts["direct"]).abs() / counts["direct_se_given_n"].where(
        counts["direct_se_given_n"] > 0
    )
    part = text[text.index("pay, count: errors") : text.index("pay, count: worst")]
    assert "n given" in part
    published = next(line for line in part.splitlines() if line.strip().startswith("published"))
    assert re.search(rf"\b{brief(given.median())}, {brief(given.max())}\s*$", published), published
    assert "n given" not in text[text.index("pay, mean of salary: errors") : text.index("pay, mean of salary: worst")]
    assert "in standard errors (SE) of the direct estimate under the survey's design" in " ".join(text.split())


def test_the_legend_explains_the_columns_that_are_shown_and_what_is_missing_is_said_once(finished: Path) -> None:
    """Of an evaluation without direct errors. Control: with errors at given sizes the legend explains them."""
    rows = evaluation(finished, "pay")
    known = rows.assign(direct_se_given_n=1.0)
    unknown = rows.assign(direct_se=0.0, direct_se_given_n=np.nan)
    unknown = unknown.assign(**{name: np.nan for name in rows if name.endswith("_error_in_se")})
    for tables, explained in ((known, True), (unknown, False)):
        console = Console(width=100, no_color=True)
        with console.capture() as captured:
            judged = overall(verdicts({"pay": tables}, False, number_of_statistics(tables)))
            console.print(evaluation_text({"pay": tables}, judged, "strict"))
        text = captured.get()
        assert ("'n given'" in text) == explained
        assert re.search(r"missing\s+missing", text) is None
        assert ("missing" in text) == (not explained)


def test_every_statistic_has_errors_of_its_own_beside_classes_and_worst_cells(finished: Path) -> None:
    text = dpdist.report(finished, confidential=True)
    for title in ("pay, count", "pay, mean of salary", "regions, count", "regions, mean of salary"):
        assert f"{title}: errors over" in text
        if title != "regions, count":
            assert f"{title}: worst cells" in text
    rows = evaluation(finished, "pay")
    mine = rows[rows["variable"] == "salary"].reset_index(drop=True)
    part = text[text.index("pay, mean of salary: errors") : text.index("pay, mean of salary: worst")]
    published = next(line.split() for line in part.splitlines() if line.strip().startswith("published"))
    size = mine["synthetic_error_in_se"]
    at = mine.loc[size.idxmax(), "field"]
    assert published[1] == "strict"
    assert float(published[2]) == pytest.approx(size.median(), abs=0.06)
    assert float(published[3]) == pytest.approx(size.quantile(0.25), abs=0.06)
    assert float(published[5]) == pytest.approx(size.quantile(0.75), abs=0.06)
    assert float(published[6]) == pytest.approx((size.dropna() > 2).mean(), abs=0.006)
    assert published[8] == at
    assert float(published[7].rstrip(":")) == pytest.approx(size.max(), abs=0.6)
    assert "clipping alone" in part
    assert "clipping alone" not in text[text.index("pay, count: errors") : text.index("pay, count: worst")]


def test_an_unprotected_yardstick_is_marked_wherever_its_error_stands(finished: Path) -> None:
    text = dpdist.report(finished, confidential=True)
    lines = [line.split() for line in text.splitlines() if line.strip().startswith(("laplace ", "laplace_composed "))]
    assert len(lines) >= 8
    assert {line[1] for line in lines} <= {"none", "missing"}
    assert "none" in {line[1] for line in lines}
    assert " ".join(text.split()).count("an unprotected comparison without a guarantee") == 2, "once each"


def test_no_report_prints_nan_and_what_is_missing_says_why(finished: Path) -> None:
    """Nobody is of theology: no mean; law has one record."""
    for confidential in (False, True):
        assert not re.search(r"\bnan\b", dpdist.report(finished, confidential), re.IGNORECASE)
    lines = dpdist.report(finished).splitlines()
    theology = [line for line in lines if "theology" in line]
    assert theology
    assert all("no record" in line for line in theology)
    assert not any("no record" in line for line in lines if "medicine" in line)
    assert "SE is one standard error" in " ".join(lines)


def test_a_release_without_standard_errors_says_why(finished: Path, tmp_path: Path) -> None:
    said = {**JOB, "mechanism": {"name": "laplace_composed"}}
    said["columns"] = {**JOB["columns"], "weight": {"bounds": [1, 100]}}
    said["tables"] = [JOB["tables"][1]]
    dpdist.run(Job.model_validate(said), tmp_path / "ws", finished.parent / "survey.parquet")
    text = " ".join(dpdist.report(tmp_path / "ws", confidential=True).split())
    assert "not given: There are no standard errors. The scale of the noise follows" in text
    assert "not judged, because standard errors" in text
    assert "nan" not in text.split()


def test_a_confidential_report_begins_with_the_verdict_and_the_figure_of_all_records(finished: Path) -> None:
    """Clipping makes the mean too low: so does the first line say. Control: the public report has no such line."""
    text = " ".join(dpdist.report(finished, confidential=True).split())
    assert text.startswith(
        "CONFIDENTIAL VERDICT: do not publish: figures for all records are biased (mean of salary in table pay"
    )
    rows = evaluation(finished, "pay").set_index(["field", "statistic"])
    mine = rows.loc[("Total", "mean")]
    off = 100 * (1 - mine["synthetic"] / mine["direct"])
    size = (mine["direct"] - mine["synthetic"]) / mine["synthetic_se"]
    by_clipping = 100 * (1 - mine["direct_clipped"] / mine["direct"])
    assert f"−{by_clipping:.1f} % by clipping to public bounds" in text[:800]
    assert f"difference −{off:.1f} % = {size:.1f} published SEs" in text
    assert f"(−{by_clipping:.1f} % by clipping to bounds)" in text
    assert "VERDICT" not in dpdist.report(finished)


def test_a_report_still_shows_the_evaluation_after_an_audit(finished: Path) -> None:
    """An audit leaves its own file beside the tables' evaluations."""
    pd.DataFrame({"record": [1]}).to_parquet(finished / "confidential" / "evaluation" / "audit-linear.parquet")
    assert "CONFIDENTIAL VERDICT" in dpdist.report(finished, confidential=True)


def on_a_terminal(*arguments: str) -> str:
    """What a command prints where a person sits before it."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "dpdist", *arguments], stdout=slave, stderr=slave, close_fds=True
    ) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # Linux ends a pseudo-terminal so
                break
            if not part:
                break
            shown += part
        assert process.wait(120) == 0, shown.decode()
    os.close(master)
    return shown.decode()


@pytest.mark.long
def test_a_run_tells_the_verdict_first_on_a_terminal_and_nowhere_else(finished: Path, tmp_path: Path) -> None:
    """Clipping moves means by many standard errors: not for publication, and the exit code stays 0."""
    again = tmp_path / "job.yaml"
    again.write_text(yaml.safe_dump(JOB), encoding="utf-8")
    told = ["run", str(again), "--workspace", str(finished), "--input", str(finished.parent / "survey.parquet")]
    shown = on_a_terminal(*told)
    assert "CONFIDENTIAL VERDICT: do not publish" in shown
    assert shown.index("Already released tiny 2020") < shown.index("CONFIDENTIAL VERDICT") < shown.index("protects")
    *_, last, following = shown.strip().splitlines()
    assert following.startswith("Next: "), following
    assert last.startswith(f"CONFIDENTIAL VERDICT on tiny 2020 ({finished}/public): do not publish: "), last
    words = " ".join(shown.split())
    assert re.search(r"pay, mean of salary: 90 % .{,900}: it is biased\..{,400} Do not publish\.", words), words[-3000:]
    log = tmp_path / "events.jsonl"
    for further in ([], ["--json"], ["--quiet"], ["--log", str(log)]):
        text = succeed(*told, *further)
        assert "VERDICT" not in text
        assert "direct estimates" not in text
    assert "VERDICT" not in on_a_terminal(*told, "--json") + on_a_terminal(*told, "--quiet")
    kept = [log, finished / "status.json", *(path for path in (finished / "public").rglob("*") if path.is_file())]
    for path in kept:
        if path.exists():
            assert b"VERDICT" not in path.read_bytes()
            assert b"direct estimates" not in path.read_bytes()
    status = invoke("status", finished, "--json").output
    assert "verdict" not in json.dumps(json.loads(status)).lower()
