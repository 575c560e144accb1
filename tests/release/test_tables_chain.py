"""Releases of `tables` whose reference is an earlier release: what they learn, state, cost and refuse."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from public_files import public_files, statement_of
from sized_package import people, sized_job
from spoiling import Spoil, cells, edited, said

import dpdist
from dpdist.core.cautions import Caution
from dpdist.core.errors import DataError
from dpdist.job import budget_text
from dpdist.opening.verifying import problems
from dpdist.planning.plan import reference as reference_line
from dpdist.privacy.claims import NOT_REFUSED
from dpdist.quality.predicted.prediction import predicted

LEVELS, TABLES, RECORDS = (3, 4, 2), [["c0", "c1"], ["c1", "c2"]], 2_000
GROWTH = 1.15
"""Of weights and outcomes by period."""


def job(folder: Path, number: int, reference: dict[str, Any], **keys: Any) -> Path:
    folder.mkdir(exist_ok=True)
    settings = {"mechanism": {"name": "tables"}, "publish": "always", "reference": reference}
    settings |= {"period": str(2020 + number)}
    path = sized_job(folder, LEVELS, TABLES, RECORDS, **settings | keys)
    survey(number).to_parquet(folder / "current.parquet")
    return path


def survey(period: int) -> pd.DataFrame:
    rows, grown = people(LEVELS, RECORDS, 1, period), GROWTH**period
    return rows.assign(w=np.minimum(rows["w"] * grown, 500.0), y0=np.minimum(rows["y0"] * grown, 1000.0))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three periods, the first on a public file; ε is 10,000, 1 and 1/2."""
    folder = tmp_path_factory.mktemp("chain")
    survey(0).to_parquet(folder / "public.parquet")
    reference: dict[str, Any] = {"path": str(folder / "public.parquet"), "period": "2020"}
    for period, epsilon in enumerate(("10000", "1", "0.5"), start=1):
        budget = {"epsilon": epsilon, "adjacency": "substitution"}
        dpdist.run(job(folder / f"job{period}", period, reference, budget=budget), folder / f"ws{period}")
        reference = {"release": str(folder / f"ws{period}" / "public")}
    return folder


def figures(workspace: Path, statistic: str) -> pd.Series:
    table = pd.read_parquet(workspace / "public" / "tables" / "t-c0-c1.parquet")
    rows = table[(table["estimator"] == "parameters") & (table["statistic"] == statistic)]
    return rows.set_index(["c0", "c1"])["estimate"].sort_index()


def direct(rows: pd.DataFrame) -> pd.Series:
    """Weighted counts by c0 and c1."""
    return rows.groupby(["c0", "c1"], observed=True)["w"].sum()


def test_a_release_states_what_a_person_in_all_files_loses(chain: Path) -> None:
    told = statement_of(chain / "ws3")
    assert (told["guarantee"], told["epsilon"]) == ("strict", "0.5")
    assert Fraction(told["reference"]["chain_epsilon"]) == 10_000 + 1 + Fraction(1, 2)
    assert [one["period"] for one in told["reference"]["chain"]] == ["2021", "2022"]
    assert told["reference"]["root"]["period"] == "2020"
    assert any("adaptive composition" in text for text in told["assumptions"])
    assert any(
        "noisy totals of measured cells in this release and in 2 earlier releases" in text for text in told["public"]
    )


def test_totals_are_those_of_the_file_where_noise_is_negligible(chain: Path) -> None:
    """Period 1 at ε = 10,000: sums of weights by measured cell, to .5 %. Control: another period's file."""
    history = json.loads((chain / "ws3" / "public" / "released" / "history.json").read_text())["strata"]["all"]
    assert [one["period"] for one in history] == ["2021", "2022", "2023"]
    first = history[0]
    stated = np.array(first["total"])[:, 0]
    assert stated[0] == pytest.approx(survey(1)["w"].sum(), rel=0.005)
    own = np.sort(stated[1:13])
    assert own == pytest.approx(np.sort(direct(survey(1)).to_numpy()), rel=0.005)
    assert own != pytest.approx(np.sort(direct(survey(2)).to_numpy()), rel=0.005)


def test_a_release_teaches_the_next_one_what_its_file_was_like(
    chain: Path, tmp_path: Path, noise_of: Callable[[str], AbstractContextManager[None]]
) -> None:
    """At ε = .02 a period without growth has the counts that the release of ε = 10,000 stated, within 10 % in the median.

    Control: those of the file with which the chain began are 20 % and more away.
    """
    budget = {"epsilon": "0.02", "adjacency": "substitution"}
    reference = {"release": str(chain / "ws1" / "public")}
    path = job(tmp_path / "job", 1, reference, budget=budget, period="2029")
    with noise_of("taught"):
        dpdist.run(path, tmp_path / "ws")
    found = figures(tmp_path / "ws", "count").loc[direct(survey(1)).index]
    assert (found / direct(survey(1)) - 1.0).abs().median() < 0.1
    assert (found / direct(survey(0)) - 1.0).abs().median() > 0.1


def test_a_plan_predicts_errors_from_the_chain(chain: Path, tmp_path: Path) -> None:
    """Control: the first reference alone predicts others."""
    budget = {"epsilon": "1", "adjacency": "substitution"}
    references = {"release": str(chain / "ws1" / "public")}, {"path": str(chain / "public.parquet"), "period": "2020"}
    found = []
    for number, reference in enumerate(references):
        plan = dpdist.plan(job(tmp_path / f"job{number}", 2, reference, budget=budget))
        prediction = predicted(plan)
        assert prediction.why == ""
        found.append(np.median([one.median for one in prediction.statistics()]))
    assert 0.1 < found[0] < 2.0
    assert found[0] != found[1]


def test_a_release_cautions_of_a_reference_that_no_longer_fits(chain: Path, tmp_path: Path) -> None:
    """Weights and outcomes that have grown by 15 % since the reference. Control: a file of the reference's own period."""
    reference = {"path": str(chain / "public.parquet"), "period": "2020"}
    path = job(tmp_path / "job", 1, reference, budget={"epsilon": "10000", "adjacency": "substitution"})
    people(LEVELS, RECORDS, 1, 9).to_parquet(tmp_path / "job" / "current.parquet")
    dpdist.run(path, tmp_path / "ws")
    cautioned = [
        sum("the reference's prediction; in single levels and cells" in text for text in told["cautions"])
        for told in (statement_of(ws) for ws in (chain / "ws1", tmp_path / "ws"))
    ]
    assert cautioned == [2, 0]
    assert NOT_REFUSED in statement_of(chain / "ws3")["assumptions"], "the chain began with a file"
    (found, _), remedy = statement_of(chain / "ws1")["cautions"], "if there is none, begin anew with reference.histogram"
    assert remedy not in found, "readers of the release choose no reference"
    assert remedy in str(Caution.coded("changed_since_reference", found))


def test_publishing_and_verifying_recompute_the_release(chain: Path) -> None:
    before = public_files(chain / "ws3")
    dpdist.publish(chain / "ws3")
    assert public_files(chain / "ws3") == before
    assert problems(chain / "ws3" / "public") == []


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an earlier link's period": ({"period": "2021"}, "release of period 2021, the job's own"),
    "another adjacency": ({"budget": {"epsilon": "1", "adjacency": "zero_out"}}, "other settings for budget.adjacency"),
}


def test_a_plan_says_what_a_person_in_all_files_loses(chain: Path, tmp_path: Path) -> None:
    """Control: the first release of a chain has a public file as its reference, and no such loss."""
    plan = dpdist.plan(job(tmp_path / "job", 4, {"release": str(chain / "ws3" / "public")}))
    assert plan.reference is not None
    told = reference_line(plan, plan.reference)
    loss = budget_text(Fraction("10001.5") + plan.job.budget.epsilon)
    assert told.endswith(f"in the files of all 4 periods of the chain, the total loss is at most ε = {loss}")
    first = dpdist.plan(job(tmp_path / "first", 1, {"path": str(chain / "public.parquet"), "period": "2020"}))
    assert first.reference is not None
    assert "chain" not in reference_line(first, first.reference)


def test_a_column_with_other_bounds_is_refused_with_those_of_the_earlier_release(chain: Path, tmp_path: Path) -> None:
    path = job(tmp_path / "job", 4, {"release": str(chain / "ws3" / "public")})
    bounds = dpdist.load_job(path).columns["y0"].bounds
    assert bounds is not None
    path.write_text(path.read_text().replace(f"{bounds[1]:g}", f"{2 * bounds[1]:g}"))
    assert dpdist.load_job(path).columns["y0"].bounds == (bounds[0], 2 * bounds[1])
    with pytest.raises(DataError, match=re.escape(f"used other settings for columns.y0 (bounds: {list(bounds)})")):
        dpdist.validate(path)


@pytest.mark.parametrize("what", REFUSED)
def test_a_release_of_something_else_is_refused(what: str, chain: Path, tmp_path: Path) -> None:
    keys, told = REFUSED[what]
    with pytest.raises(DataError, match=told):
        dpdist.validate(job(tmp_path / "job", 4, {"release": str(chain / "ws3" / "public")}, **keys))


def test_the_file_with_which_the_chain_began_is_not_released_under_it(chain: Path, tmp_path: Path) -> None:
    path = job(tmp_path / "job", 0, {"release": str(chain / "ws3" / "public")}, period="2030")
    with pytest.raises(DataError, match="its chain begins with the current file"):
        dpdist.validate(path)


HISTORY = "released/history.json"
SPOILED: dict[str, Spoil] = {
    "totals of no cell": edited(said([], "strata", "all", 0, "total"), HISTORY),
    "a variance of 0": edited(said([[0.0, 0.0]] * 21, "strata", "all", 0, "variance"), HISTORY),
    "text for numbers": edited(said("many", "strata", "all", 0, "count"), HISTORY),
    "a level that no column has": edited(said([[9, 9, 9]] * 24, "strata", "all", 0, "codes"), HISTORY),
    "a donor beyond the outcome's bounds": cells("outcome y0", 1e6),
    "a donor of no cell": cells("cell", 10**6),
}
"""Totals or records that were changed under a manifest that fits them; more in test_hostile_releases."""


@pytest.mark.parametrize("what", [*SPOILED, "control"])
def test_a_release_that_lies_is_refused_by_name(what: str, chain: Path, tmp_path: Path) -> None:
    shutil.copytree(chain / "ws1" / "public", tmp_path / "public")
    path = job(tmp_path / "job", 2, {"release": str(tmp_path / "public")})
    if what == "control":
        dpdist.validate(path)
        return
    SPOILED[what](tmp_path / "public")
    with pytest.raises(DataError, match=r"released/(history\.json|donors\.parquet)"):
        dpdist.validate(path)
