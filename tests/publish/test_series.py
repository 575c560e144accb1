"""A series over periods: the releases' own figures, their changes, and what does not belong together, named or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import openpyxl
import pandas as pd
import pytest
from command_line import invoke
from edited_text import edited
from small_release import LAPLACE_JOB as JOB, decimals_of, survey
from typer.testing import Result

import dpdist
from dpdist.core.errors import AnalysisError, WorkspaceError
from dpdist.core.public_files import UNFIT
from dpdist.publish.differences import period_differences
from dpdist.publish.series import _later
from dpdist.publish.writers.series import write_series

LONG = "Graduates of " + "interdisciplinary environmental and agricultural sciences, " * 4
LEVELS = {"arts": "工学・情報科学", "law": "قانون"}
TEXTS = f"""
presentation:
  language: ar
  columns:
    field: {{label: "{LONG}", levels: {{arts: {LEVELS["arts"]}, law: {LEVELS["law"]}}}}}
  quality: {{cv: {{caution: 0.05, unreliable: 0.2}}}}
"""
PLAIN = JOB.replace('epsilon: "3"', 'epsilon: "8"')


def release(folder: Path, period: str, edits: Mapping[str, str] = {}, seed: int = 0, publish: str = "always") -> Path:
    text = PLAIN.replace('"2021"', f'"{period}"')
    text = edited(text, *edits.items())
    people = survey(2000).sample(800, random_state=seed).reset_index(drop=True)
    dpdist.run(dpdist.parse_job(text + f"publish: {publish}\n"), folder, people)
    return folder


@pytest.fixture(scope="module")
def periods(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The last one has another table, another statistic, and labels of its own."""
    folder = tmp_path_factory.mktemp("periods")
    last = {
        "{mean: salary}]}": "{mean: salary}, {total: salary}]}\n  - {name: fields, by: [field], statistics: [count]}",
        "runtime: {executor: serial}": f"runtime: {{executor: serial}}{TEXTS}",
    }
    return [
        release(folder / name, name, edits, seed)
        for seed, (name, edits) in enumerate({"2020": {}, "2021": {}, "2022": last}.items())
    ]


def series(*words: str | Path) -> Result:
    return invoke("series", *words)


@pytest.fixture(scope="module")
def written(periods: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("series") / "out"
    done = series(*periods, "--out", out)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("3 periods, 2 tables, 66 figures; ")
    assert "note: table 'counts' has no total of salary in 2020, 2021" in done.output
    return out


def test_the_long_file_has_the_printed_figures_of_every_release(written: Path, periods: list[Path]) -> None:
    rows = pd.read_parquet(written / "series.parquet")
    assert rows["period"].unique().tolist() == ["2020", "2021", "2022"]
    assert not rows.duplicated(["period", "table", "field", "sex", "statistic", "variable"]).any()
    for place in periods:
        opened = dpdist.open_release(place)
        own = rows[rows["period"] == place.name]
        assert set(own["release"]) == {json.loads((place / "public" / "manifest.json").read_text())["release"]}
        for name in opened.tables:
            published = opened.tables[name].query("estimator == 'parameters'").reset_index(drop=True)
            same = own[own["table"] == name].reset_index(drop=True)[published.columns.tolist()]
            pd.testing.assert_frame_equal(same, published, check_dtype=False)
    with_rules = rows["period"] == "2022"
    assert (rows.loc[with_rules, "grade"] != "").all()
    assert (rows.loc[~with_rules, "grade"] == "").all(), "no standard error is above 30 % of its figure"
    text = pd.read_csv(written / "series.csv")
    assert text["estimate"].tolist() == rows["estimate"].tolist()


def test_changes_are_those_of_consecutive_periods(written: Path, periods: list[Path]) -> None:
    changes = pd.read_parquet(written / "changes.parquet")
    found = dpdist.series([dpdist.open_release(place) for place in periods])
    pd.testing.assert_frame_equal(found.changes, changes, check_dtype=False)
    assert changes[["period_before", "period_after"]].drop_duplicates().to_numpy().tolist() == [
        ["2020", "2021"],
        ["2021", "2022"],
    ]
    for before, after in pairwise(periods):
        right = period_differences(dpdist.open_release(before), dpdist.open_release(after))["counts"]
        right = right.query("estimator == 'parameters'").reset_index(drop=True)
        own = changes[changes["period_after"] == after.name].reset_index(drop=True)
        assert own["difference"].tolist() == pytest.approx(right["difference"].tolist())
        assert own["standard_error"].tolist() == pytest.approx(right["standard_error"].tolist())
        assert own["significant"].tolist() == right["significant"].tolist()


def test_page_and_workbook_show_tables_by_period_with_their_changes(written: Path) -> None:
    """With a long label, and labels in scripts from the right and of wide characters; without a title."""
    html = (written / "index.html").read_text(encoding="utf-8")
    assert [name for name in ("series.csv", "changes.parquet", "tables.xlsx") if f'href="{name}"' not in html] == []
    assert html.count('<table id="data-') == 3
    assert html.index("<title>small, 2020 to 2022</title>") > 0
    assert LONG.strip() in html
    for label in LEVELS.values():
        assert f'<bdi lang="ar">{label}</bdi>' in html
    book = openpyxl.load_workbook(written / "tables.xlsx")
    assert book.sheetnames == ["Cover", "Table 1", "Table 2", "Table 3", "Privacy"]
    first, second = book["Table 1"], book["Table 2"]
    rows = pd.read_parquet(written / "series.parquet").query("table == 'counts' and statistic == 'count'")
    decimals = decimals_of(rows["standard_error"])
    figures = [first.cell(6, column).value for column in (3, 9, 15)]
    assert figures == [round(value, decimals) for value in rows.query("field == 'arts' and sex == 'f'")["estimate"]]
    assert first["C4"].value == "2020"
    assert (second["A1"].value, second["C4"].value) == ("Table 2. counts: changes", "2020 to 2021")
    significant = pd.read_parquet(written / "changes.parquet")["significant"].sum()
    assert html.count('class="flag significant"') == 2 * significant
    assert {cell.data_type for sheet in book for row in sheet.iter_rows() for cell in row} == {"s", "n"}
    assert book["Table 3"].column_dimensions["A"].width == pytest.approx(44, abs=1), "the widest"


def test_the_same_releases_give_the_same_bytes_in_place_of_the_former(
    written: Path, periods: list[Path], tmp_path: Path
) -> None:
    """Control: fewer periods give others. Files that are no series stay."""
    before = {path.name: path.read_bytes() for path in written.iterdir()}
    (tmp_path / "out").mkdir()
    assert series(*periods[:2], "--out", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "series.csv").read_bytes() != before["series.csv"]
    assert series(*periods, "--out", tmp_path / "out").exit_code == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    with pytest.raises(WorkspaceError, match="it exists, and is not a series"):
        write_series(tmp_path / "mine", dpdist.series([dpdist.open_release(place) for place in periods]))
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "words"


def test_tables_that_changed_their_definition_are_named_and_kept_where_it_is_shared(
    periods: list[Path], tmp_path: Path
) -> None:
    edits = {"by: [field, sex]": "by: [field]", "levels: [f, m]": "levels: [f, m, x]"}
    edits["{mean: salary}]}"] = "{mean: salary}]}\n  - {name: fields, by: [field], statistics: [count]}"
    early = release(tmp_path / "2019", "2019", edits)
    found = dpdist.series([dpdist.open_release(place) for place in (early, *periods)])
    assert found.notes[:1] == ["table 'counts' of 2019 is by field, but by field, sex in later periods, so it is left out"]
    assert "column 'sex' changed levels between 2019 and 2020: without x" in found.notes
    assert "2019 and 2020 have no table in common" in found.notes
    assert set(found.rows.query("table == 'counts'")["period"]) == {"2020", "2021", "2022"}
    assert set(found.rows.query("table == 'fields'")["period"]) == {"2019", "2022"}


def test_releases_that_make_no_series_are_refused(periods: list[Path], tmp_path: Path) -> None:
    other = release(tmp_path / "other", "2019", {"dataset: small": "dataset: large"})
    apart = release(tmp_path / "apart", "2019", {"name: counts": "name: figures"})
    again = release(tmp_path / "again", "2020", seed=9)
    changed = tmp_path / "changed"
    shutil.copytree(periods[0], changed)
    (changed / "public" / "tables" / "counts.csv").write_text("a\n1\n")
    held = tmp_path / "held"
    shutil.copytree(again / "public", held)
    (held / UNFIT).write_text("A study.\n")
    refused = {
        (periods[0],): "only one release",
        (other, periods[0]): "is of 'large', but",
        (periods[0], again): "are both of 2020",
        (periods[1], periods[0]): "series: the releases are not in order of period: 2021 is named before 2020",
        (periods[2], periods[0], periods[1]): "name them in the order 2020, 2021, 2022",
        (apart, periods[0]): "no two releases have a table in common",
        (held, periods[1]): "is not for publication: A study.",
        (changed, periods[1]): "counts.csv",
        (tmp_path / "nowhere", periods[1]): "no release",
    }
    for places, told in refused.items():
        done = series(*places, "--out", tmp_path / "none")
        assert done.exit_code == 2, done.output
        assert told in " ".join(done.output.split()), done.output
    assert not (tmp_path / "none").exists()
    with pytest.raises(AnalysisError):
        dpdist.series([dpdist.open_release(periods[0])])


def test_only_periods_that_are_known_to_be_later_are_out_of_order() -> None:
    pairs = [("2024", "2023"), ("2023-Q2", "2023-Q1"), ("2024-Q1", "2023"), ("2013-2014", "2012-2013")]
    assert all(_later(*pair) for pair in pairs)
    assert not any(_later(after, before) for before, after in pairs)
    assert not any(_later(*pair) for pair in [("2023-Q4", "2023-S1"), ("2023", "2023-Q1"), ("wave 9", "wave 10")])


def test_a_title_of_one_release_is_not_that_of_the_series(tmp_path: Path) -> None:
    """A title that all have, but for its period, stands with the range of periods, and `--title` replaces it; sources of
    all are named.
    """

    def titled(period: str, title: str) -> Path:
        runtime = "runtime: {executor: serial}"
        texts = f"{runtime}\npresentation: {{title: '{title}', source: Of {period}}}"
        return release(tmp_path / title.replace("{{period}}", "P") / period, period, {runtime: texts})

    first, same, other = titled("2023", "Pay"), titled("2024", "Pay"), titled("2024", "Pay in 2024")
    with_period, with_former = titled("2023", "Pay in {{period}} and later"), titled("2024", "Pay in 2023 and later")
    following = titled("2024", "Pay in {{period}} and later")
    titles = {
        (first, same): "Pay, 2023 to 2024",
        (first, other): "small, 2023 to 2024",
        (with_period, following): "Pay in 2023 to 2024 and later",
        (with_period, with_former): "small, 2023 to 2024",
    }
    for places, title in titles.items():
        assert series(*places, "--out", tmp_path / "out").exit_code == 0
        assert f"<title>{title}</title>" in (tmp_path / "out" / "index.html").read_text()
        cover = [cell.value for row in openpyxl.load_workbook(tmp_path / "out" / "tables.xlsx")["Cover"] for cell in row]
        assert cover[0] == title
        assert "Of 2023; Of 2024" in cover
    assert series(first, other, "--out", tmp_path / "out", "--title", "My pay").exit_code == 0
    assert "<title>My pay</title>" in (tmp_path / "out" / "index.html").read_text()


def test_a_series_states_cautions_and_who_decides_on_publication(tmp_path: Path) -> None:
    """On the page, in series.json, in the workbook and on the terminal. Control: the other release has neither."""
    little = {'{epsilon: "8"}': '{epsilon: "0.02"}'}
    places = [release(tmp_path / "2020", "2020", little, 0, "unless_refused"), release(tmp_path / "2021", "2021", {}, 1)]
    statement = dpdist.open_release(places[0]).statement
    number = len(statement["cautions"])
    assert number > 1
    done = series(*places, "--out", tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out" / "series.csv", keep_default_na=False, na_values={"estimate": [""]}).dropna()
    large = rows["standard_error"].astype(float) > 0.3 * rows["estimate"].abs()
    assert 0 < large.sum() < len(rows)
    assert (rows["grade"] == "caution")[large].all(), "as on the page of a release without rules"
    assert set(rows["grade"]) == {"", "caution"}
    html = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert html.count('<span class="flag caution">') == (rows["grade"] == "caution").sum()
    assert f"2020: {number} cautions; its page states them" in done.output
    assert "2021: " not in done.output
    first, second = json.loads((tmp_path / "out" / "series.json").read_text())["releases"]
    assert (first["cautions"], first["decision"]) == (statement["cautions"], statement["publication"])
    assert (second["cautions"], second["decision"]) == ([], "")
    html = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert f"<summary>Cautions of 2020 ({number})</summary>" in html
    assert html.count(statement["publication"]) == 1
    texts = [cell.value for row in openpyxl.load_workbook(tmp_path / "out" / "tables.xlsx")["Privacy"] for cell in row]
    assert f"2020: {statement['cautions'][0]}" in texts
    assert f"2020: {statement['publication']}" in texts
