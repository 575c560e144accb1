"""Tables as SDMX dataflows: pysdmx reads them back by SDMX's own schema, with the published figures and their status."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from edited_text import edited
from public_files import statement_of
from pysdmx.errors import Invalid
from pysdmx.io import get_datasets, read_sdmx
from small_release import LAPLACE, LAPLACE_JOB as JOB, survey

import dpdist
from dpdist.core.errors import JobError
from dpdist.job.loading import parse_job
from dpdist.publish.writers.sdmx import confidentiality, identifier, identifiers

LEVELS = ["=SUM(A1)", "قانون", "arts & letters"]
PRESENTATION = """
presentation:
  sdmx: {agency: AGENCY.UNIT}
  quality: {cv: {caution: 0.04, unreliable: 0.5}, minimum: 1500}
  columns: {field: {label: Field of degree, levels: {"قانون": القانون}}}
  tables: {counts: {title: Graduates and their pay}}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    people = survey()
    people["field"] = people["field"].map({"arts": LEVELS[0], "law": LEVELS[1]})
    people.loc[:40, "field"] = LEVELS[2]
    people.to_parquet(folder / "survey.parquet")
    text = JOB.replace("[arts, law]", json.dumps(LEVELS, ensure_ascii=False))
    dpdist.run(parse_job(text + PRESENTATION), folder / "ws", input=folder / "survey.parquet")
    return folder / "ws"


@pytest.fixture(scope="module")
def observed(workspace: Path) -> pd.DataFrame:
    """Observations as pysdmx reads them by the structure."""
    folder = workspace / "public" / "sdmx"
    (dataset,) = get_datasets(folder / "counts.csv", folder / "structure.json")
    return pd.DataFrame(dataset.data)


def published(workspace: Path) -> pd.DataFrame:
    return pd.read_parquet(workspace / "public" / "tables" / "counts.parquet").query("estimator == 'parameters'")


def test_the_structure_is_valid_by_sdmx_and_names_labels_and_the_guarantee(workspace: Path) -> None:
    path = workspace / "public" / "sdmx" / "structure.json"
    message = read_sdmx(path, validate=True)
    (flow,) = message.get_dataflows()
    assert (flow.name, flow.short_urn) == ("Graduates and their pay", "Dataflow=AGENCY.UNIT:COUNTS(1.0)")
    statement = statement_of(workspace)
    assert flow.description == statement["guarantee_in_words"]
    lists = {each.id: {code.id: code.name for code in each} for each in message.get_codelists()}
    assert lists["CL_SMALL_FIELD"] == {
        "_T": "Total",
        "SUM_A1": "=SUM(A1)",
        "C": "القانون",
        "ARTS_LETTERS": "arts & letters",
    }
    assert lists["CL_SMALL_STATISTIC"] == {"COUNT": "Count", "MEAN_SALARY": "Mean of salary"}
    assert set(lists["CL_OBS_STATUS"]) == {"A", "U", "O", "Q"}
    assert lists["CL_CONF_STATUS"] == {
        "F": "Free (free for publication)",
        "N": "Not for publication, restricted for internal use only",
    }
    broken = json.loads(path.read_text(encoding="utf-8"))
    del broken["data"]["dataflows"][0]["name"]
    (workspace / "broken.json").write_text(json.dumps(broken), encoding="utf-8")
    with pytest.raises(Invalid, match="Validation"):
        read_sdmx(workspace / "broken.json", validate=True)


def test_observations_are_the_published_figures_whole(workspace: Path, observed: pd.DataFrame) -> None:
    rows = published(workspace).reset_index(drop=True)
    assert len(observed) == len(rows) == 4 * 3 * 2
    field = {"Total": "_T", **identifiers(LEVELS)}
    assert list(observed["FIELD"]) == [field[level] for level in rows["field"]]
    assert list(observed["SEX"]) == [{"f": "F", "m": "M", "Total": "_T"}[level] for level in rows["sex"]]
    assert list(observed["STATISTIC"]) == ["COUNT", "MEAN_SALARY"] * 12
    assert set(observed["TIME_PERIOD"]) == {"2021"}
    kept = (observed["OBS_STATUS"] != "Q").to_numpy()
    names = {"OBS_VALUE": "estimate", "STD_ERROR": "standard_error", "LOWER_LIMIT": "lower", "UPPER_LIMIT": "upper"}
    for name, column in names.items():
        figures = pd.to_numeric(observed[name]).to_numpy(dtype=float, na_value=np.nan)
        assert np.array_equal(figures[kept], rows[column].to_numpy()[kept])
        assert np.isnan(figures[~kept]).all()


def test_status_is_of_the_rules_of_print(workspace: Path, observed: pd.DataFrame) -> None:
    rows = published(workspace)
    count = np.repeat(rows.query("statistic == 'count'")["estimate"].to_numpy(), 2)
    cv = (rows["standard_error"] / rows["estimate"]).to_numpy()
    expected = np.where(count < 1500, "Q", np.where(cv > 0.04, "U", "A"))
    assert set(expected) == {"A", "U", "Q"}, "the case has not every status: it shows less"
    assert list(observed["OBS_STATUS"]) == list(expected)
    assert set(observed["CONF_STATUS"]) == {"F"}, "what a rule of print leaves out stands in the Parquet, for all to see"
    assert rows["estimate"].notna().all()


def test_what_is_not_to_be_published_is_not_free_for_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is promised, and where noisy sums themselves show that the release is wrong."""
    survey().to_parquet(tmp_path / "survey.parquet")

    def status(text: str, name: str) -> set[str]:
        said = parse_job(text + "presentation: {sdmx: {agency: A}}\n")
        folder = Path(dpdist.run(said, tmp_path / name, input=tmp_path / "survey.parquet")) / "sdmx"
        (dataset,) = get_datasets(folder / "counts.csv", folder / "structure.json")
        return set(pd.DataFrame(dataset.data)["CONF_STATUS"])

    assert status(JOB, "strict") == {"F"}, "control"
    changed = {
        LAPLACE: "{name: laplace, sensitivity: local}",
        "  weight: {bounds: [1, 60], outside: clip}\n": "",
    }
    local = edited(JOB, *changed.items())
    assert status(local, "none") == {"N"}
    assert confidentiality({"guarantee": "strict", "do_not_publish": "weights are beyond their bounds"}) == "N"


def test_ids_are_such_that_sdmx_takes_them_and_all_different() -> None:
    assert [identifier(text) for text in ("20-29", "a b", "_x", "…")] == ["C20_29", "A_B", "X", "C"]
    assert list(identifiers(["a b", "a-b", "A.B"]).values()) == ["A_B", "A_B_2", "A_B_3"]
    assert identifiers(["statistic"], "STATISTIC") == {"statistic": "STATISTIC_2"}


def test_without_an_agency_nothing_is_written_and_without_pysdmx_the_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey().to_parquet(tmp_path / "survey.parquet")
    public = Path(dpdist.run(parse_job(JOB), tmp_path / "ws", input=tmp_path / "survey.parquet"))
    assert not (public / "sdmx").exists()
    monkeypatch.setitem(sys.modules, "pysdmx", None)
    with pytest.raises(JobError, match="pysdmx, which is not installed") as refused:
        dpdist.validate(parse_job(JOB + "presentation: {sdmx: {agency: A}}\n"), tmp_path / "survey.parquet")
    assert "pip install 'dpdist[sdmx]'" in str(refused.value)
    with pytest.raises(JobError, match=r"presentation\.sdmx\.agency"):
        parse_job(JOB + "presentation: {sdmx: {agency: 1 agency}}\n")


NEAR = """
dataset: OBS
period: "2021"
columns:
  b: {levels: [x, y]}
  b_c: {levels: [x, y]}
  c: {levels: [u, v, w]}
  status: {levels: [s, t]}
  salary: {bounds: [0, 200000], outside: clip}
  weight: {bounds: [1, 60], outside: clip}
survey: {weight: weight}
outcome: salary
mechanism: {name: tables}
budget: {epsilon: "8"}
tables:
  - {name: a-b, by: [c, b], statistics: [count, {mean: salary}]}
  - {name: a_b, by: [status], statistics: [{mean: salary}]}
  - {name: A.B, by: [b], statistics: [count], margins: false}
  - {name: a, by: [b_c, c], statistics: [count]}
runtime: {executor: serial}
presentation: {title: Four tables, sdmx: {agency: AGENCY}}
"""


def test_all_tables_share_one_structure_and_stand_in_one_cube(tmp_path: Path) -> None:
    """Ids near each other: tables a-b and a_b, columns b and b_c, and a list of dataset OBS that is not OBS_STATUS's."""
    rng = np.random.default_rng(5)
    levels = {"b": ["x", "y"], "b_c": ["x", "y"], "c": ["u", "v", "w"], "status": ["s", "t"]}
    people = pd.DataFrame({name: rng.choice(texts, 400) for name, texts in levels.items()})
    people = people.assign(salary=np.exp(rng.normal(11.0, 0.4, 400)), weight=20.0)
    job = parse_job(NEAR)
    folder = Path(dpdist.run(job, tmp_path / "ws", people)) / "sdmx"
    message = read_sdmx(folder / "structure.json", validate=True)
    (structure,) = message.get_data_structure_definitions()
    (concepts,) = message.get_concept_schemes()
    assert (structure.id, structure.name) == ("OBS", "Four tables")
    assert {each.id for each in concepts} == {each.id for each in structure.components}
    lists = {each.id: [code.id for code in each] for each in message.get_codelists()}
    assert len(lists) == len(message.get_codelists()) == 4 + 1 + 2, "columns, statistics, two statuses"
    assert lists["CL_OBS_STATUS"] == ["A", "U", "O", "Q"]
    assert lists["CL_OBS_STATUS_2"] == ["_T", "S", "T"]
    assert [flow.id for flow in message.get_dataflows()] == ["A_B", "A_B_2", "A_B_3", "A"]
    cube = []
    for table in job.tables:
        (dataset,) = get_datasets(folder / f"{table.name}.csv", folder / "structure.json")
        observed = pd.DataFrame(dataset.data)
        for name, texts in levels.items():
            total = {"_T"} if table.margins or name not in table.by else set()
            codes = {text.upper() for text in texts} if name in table.by else set()
            assert set(observed[name.upper()]) == total | codes
        published = pd.read_parquet(folder.parent / "tables" / f"{table.name}.parquet").query("estimator == 'parameters'")
        assert np.array_equal(pd.to_numeric(observed["OBS_VALUE"]), published["estimate"])
        cube.append(observed)
    keys = ["C", "B", "STATUS", "B_C", "STATISTIC", "TIME_PERIOD"]
    assert [each.id for each in structure.components.dimensions] == keys
    figures = pd.concat(cube).astype({"OBS_VALUE": float}).groupby(keys)["OBS_VALUE"]
    assert figures.ngroups < sum(map(len, cube)), "a cell of two tables has one key"
