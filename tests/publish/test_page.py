"""The page of a release: self-contained, with the statement's own words and the published figures, or links to them."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import time
import tracemalloc
import zipfile
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from public_files import statement_of
from small_release import JOB, decimals_of, survey

import dpdist
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.publish.printed_tables import FEW_TABLES, NO_ESTIMATE, PrintedTable, printed_table, written_tables
from dpdist.publish.writers import page as page_writer, workbook
from dpdist.publish.writers.csv_tables import wide_text
from dpdist.publish.writers.dotplot import chart, plots
from dpdist.publish.writers.page import shown_table, write_page
from dpdist.publish.writers.workbook import write_workbook

LEVELS = ["<script>alert(1)</script>", "قانون"]
PRESENTATION = """
presentation:
  title: Salaries & more
  language: ar
  columns:
    field: {label: الحقل}
    salary: {label: annual salary, unit: US dollars}
"""


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    people = survey()
    people["field"] = people["field"].map(dict(zip(["arts", "law"], LEVELS, strict=True)))
    people.to_parquet(folder / "survey.parquet")
    text = JOB.replace("[arts, law]", json.dumps(LEVELS)).replace("by: [field, sex]", "by: [sex, field]")
    return Path(dpdist.run(parse_job(text + PRESENTATION), folder / "ws", input=folder / "survey.parquet"))


class Page(HTMLParser):
    """Elements by name, visible text, and text of table cells."""

    def __init__(self, html: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.within: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.within and self.within.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.within and self.within[-1] not in ("script", "style"):
            self.text.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def html(public: Path) -> str:
    return (public / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_page_asks_for_nothing_from_a_network_and_links_files_that_are_there(
    page: Page, html: str, public: Path
) -> None:
    assert len(html.encode()) < 1_000_000
    loaded = [e.get("src") or e.get("href") for tag in ("img", "link", "script", "iframe") for e in page.of(tag)]
    assert [name for name in loaded if name] == []
    assert not re.search(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[a-z]", html)
    links = [str(e["href"]) for e in page.of("a") if not str(e["href"]).startswith("#")]
    assert len(links) > 10
    assert [name for name in links if not (public / name).is_file()] == []
    targets = {e.get("id") for _, e in page.elements}
    assert {str(e["href"])[1:] for e in page.of("a") if str(e["href"]).startswith("#")} <= targets


def test_what_it_says_of_privacy_is_the_statements(page: Page, public: Path) -> None:
    said, text = statement_of(public), "".join(page.text)
    one = [said[name] for name in ("headline", "guarantee_in_words", "adjacency_in_words", "privacy_unit_in_words")]
    many = [*said["not_protected"], *said["protected"], *said["assumptions"], *said["standard_errors"]]
    assert [sentence for sentence in (*one, *many) if sentence[1:].replace("`", "") not in text] == []


def test_names_between_backticks_are_shown_as_code(html: str, tmp_path: Path) -> None:
    """Control: a single backtick is text, and so is markup between two of them."""
    assert "`" not in re.sub(r"<pre.*?</pre>", "", html, flags=re.DOTALL)
    assert "(estimator <code>parameters</code>): standard errors are computed from" in html
    said = {"guarantee": "none", "guarantee_in_words": "one ` alone", "privacy_unit_in_words": "a `<b>`"}
    write_page(tmp_path / "index.html", parse_job(JOB), [], {**said, "trust_model": "central"})
    made = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "One ` alone." in made
    assert "A <code>&lt;b&gt;</code>." in made


def test_of_epsilon_a_page_without_a_guarantee_says_nothing_of_its_own(tmp_path: Path) -> None:
    job = parse_job(JOB)
    said = {"guarantee_in_words": "nothing is claimed", "privacy_unit_in_words": "a row", "trust_model": "central"}
    pages = []
    for guarantee in ("strict", "none"):
        write_page(tmp_path / "index.html", job, [], {**said, "guarantee": guarantee})
        pages.append((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert ["epsilon" in page for page in pages] == [True, False]
    assert all("Nothing is claimed." in page for page in pages)


def test_figures_on_the_page_are_the_published_ones(html: str, public: Path) -> None:
    table = pd.read_parquet(public / "tables" / "counts.parquet").query("estimator == 'parameters'")
    shown = [float(value) for value in re.findall(r'data-v="([^"]+)"', html)]
    assert len(shown) == len(table) == 3 * 3 * 2
    printed = [
        value
        for _, of_statistic in table.groupby("statistic")
        for value in of_statistic["estimate"].round(decimals_of(of_statistic["standard_error"]))
    ]
    assert np.allclose(sorted(shown), sorted(printed), atol=0.0)
    assert html.count("<circle") - html.count('cy="5"') == 2 * 2 + 3 * 3  # counts without margins, means with them


def test_labels_are_texts_whatever_they_hold_in_a_direction_of_their_own(page: Page, html: str) -> None:
    assert page.of("html") == [{"lang": "en"}]
    assert len(page.of("script")) == 1
    assert html.count("<script>alert") == 0
    assert '<bdi lang="ar">قانون</bdi>' in html
    assert '<bdi lang="ar">الحقل</bdi>' in html


def test_every_control_has_a_name_and_every_heading_cell_a_scope(page: Page) -> None:
    named = {e["for"] for e in page.of("label")}
    assert {e["id"] for e in page.of("input")} == named
    assert all(e.get("scope") in ("row", "col", "colgroup") for e in page.of("th"))
    drawings = [e for e in page.of("div") if e.get("role") == "img"]
    assert [bool(e.get("aria-label")) for e in drawings] == [True] * 2
    assert all(e.get("aria-label") or e.get("aria-labelledby") for e in page.of("div") if e.get("role") == "region")
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_the_python_example_gives_the_figure_that_the_page_names(
    html: str, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = re.search(r"<h3>Python</h3>\s*<pre[^>]*><code>(.*?)</code>", html, re.DOTALL)
    assert code is not None
    text = unescape(code[1])
    monkeypatch.chdir(public)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(text, {})
    table = pd.read_parquet(public / "tables" / "counts.parquet")
    (told,) = table.query("estimator == 'records' and statistic == 'mean' and field == 'Total' and sex == 'Total'")[
        "estimate"
    ]
    assert float(printed.getvalue().split()[0]) == pytest.approx(told, rel=1e-9)
    assert f"{told!r} in tables/counts.csv" in text


def table_of(levels: list[str]) -> tuple[Job, PrintedTable, pa.Table]:
    """A table of two columns of these levels with margins, and its printed form."""
    text = JOB.replace("{levels: [arts, law]}", f"{{levels: {levels}}}")
    text = text.replace("{levels: [f, m]}", f"{{levels: {levels}}}")
    job = parse_job(text.replace("strata: [field]\n", ""))
    (said,) = job.tables
    cells = [(one, other) for one in (*levels, "Total") for other in (*levels, "Total")]
    size = 2 * len(cells)
    numbers = {name: np.arange(size, dtype=float) for name in ("estimate", "standard_error", "df", "lower", "upper")}
    table = pa.table(
        {
            "field": np.repeat([one for one, _ in cells], 2),
            "sex": np.repeat([other for _, other in cells], 2),
            "statistic": ["count", "mean"] * len(cells),
            "variable": [None, "salary"] * len(cells),
            "estimator": ["parameters"] * size,
            **numbers,
        }
    )
    return job, printed_table(job, said, table, {}), table


STATEMENT = {
    "guarantee_in_words": "words",
    "privacy_unit_in_words": "words",
    "not_protected": [],
    "trust_model": "words",
}


FLAGGED = '<span class="flag caution">'


def page_of_a_table(tmp_path: Path, levels: list[str]) -> tuple[int, str]:
    """Figures of such a table, and the page that it has."""
    job, form, table = table_of(levels)
    write_page(tmp_path / "index.html", job, [(form, table)], STATEMENT)
    return len(table), (tmp_path / "index.html").read_text(encoding="utf-8")


def test_wide_tables_are_printed_in_landscape_and_lose_no_column() -> None:
    """By the width of their rows. Control: narrow ones stay in portrait."""
    for levels, classes in (("ab", ""), ("abcd", " wide"), ("abcdef", " wide widest")):
        _, form, _ = table_of(list(levels))
        large = replace(form, values=form.values + 1.2345678e8, margins=form.margins + 1e7)
        assert shown_table(large).on_paper == classes, levels


def test_a_target_is_not_said_to_be_a_bound(tmp_path: Path) -> None:
    """Control: a strict release's page says that ε bounds the dependence, and what is protected."""
    job, form, table = table_of(["a", "b"])
    said = {**STATEMENT, "headline": "salary of any record", "protected": ["salary"]}
    pages = dict[str, str]()
    for guarantee in ("asymptotic", "strict"):
        write_page(tmp_path / "index.html", job, [(form, table)], {**said, "guarantee": guarantee})
        pages[guarantee] = (tmp_path / "index.html").read_text(encoding="utf-8")
    for text in ("ε (epsilon) bounds how much", "<h3>Protected</h3>", "<p>Protected: "):
        assert [text in pages[guarantee] for guarantee in ("asymptotic", "strict")] == [False, True]
    for text in ("ε (epsilon) is a target", "<h3>Intended to be protected</h3>", "<p>Intended to be protected: "):
        assert [text in pages[guarantee] for guarantee in ("asymptotic", "strict")] == [True, False]


def test_of_many_tables_the_first_is_open_and_others_are_closed_with_their_figures_and_cautions(tmp_path: Path) -> None:
    """Control: a page of few tables has them open, with plots. Cautions of a table stand there on both."""
    job, form, table = table_of(["a", "b", "c"])
    cautions = ["t3, count: far off", "all figures are noisy", "t3: 1 of 8 figures are withheld"]
    statement = {"guarantee_in_words": "words", "privacy_unit_in_words": "words", "trust_model": "words"}
    pages = []
    for number in (FEW_TABLES, FEW_TABLES + 1):
        tables = [(replace(form, name=f"t{k}", title=f"Title {k}"), table) for k in range(number)]
        write_page(tmp_path / "index.html", job, tables, {**statement, "cautions": cautions})
        pages.append((tmp_path / "index.html").read_text(encoding="utf-8"))
    few, many = pages
    assert ("find-table" in few, few.count('<details class="one">'), "<svg" in few) == (False, 0, True)
    assert (many.count('<details class="one">'), many.count('<details class="one" open>')) == (FEW_TABLES, 1)
    assert "<svg" not in many
    assert many.count("<td data-v=") == (FEW_TABLES + 1) * len(table)
    links = re.findall(r'<li value="\d+"><a href="#(table-\d+)"><bdi lang="en">Title (\d+)</bdi>', many)
    assert many.count('<li value="4"><a href="#table-4">') == 1, "a search leaves tables their numbers"
    assert links == [(f"table-{k + 1}", str(k)) for k in range(FEW_TABLES + 1)]
    assert [many.count(f'<div id="{place}">') for place, _ in links] == [1] * len(links), "a link opens its table"
    for page in pages:
        for caution in ("T3, count: far off.", "T3: 1 of 8 figures are withheld."):
            assert page.index('<div id="table-4">') < page.index(caution) < page.index('<div id="table-5">')
        assert page.index("All figures are noisy.") < page.index("2 cautions are printed below the")
        assert page.index("2 cautions are printed below the") < page.index('id="tables"')
    write_page(tmp_path / "index.html", job, [(replace(form, name="values"), table)], {**statement, "cautions": cautions})
    one = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert one.index("T3, count: far off.") < one.index('id="tables"'), (
        "of a single table they stand above, whatever its name"
    )
    assert "more than a page can show" not in many


def test_a_workbook_of_many_tables_lists_the_columns_of_tables_without_titles(tmp_path: Path) -> None:
    """Control: a workbook of few tables lists their names."""
    job, form, _ = table_of(["a", "b", "c"])
    listed = []
    for number in (FEW_TABLES, FEW_TABLES + 1):
        tables = [replace(form, name=f"t{k}", title=f"t{k}") for k in range(number)]
        write_workbook(tmp_path / "tables.xlsx", job, tables, {"guarantee_in_words": "words"})
        with zipfile.ZipFile(tmp_path / "tables.xlsx") as book:
            listed.append(
                f"t3: {' × '.join([*form.stub, form.across or ''])}" in book.read("xl/sharedStrings.xml").decode()
            )
    assert listed == [False, True]


def test_a_table_of_a_hundred_thousand_cells_is_written_and_the_page_leaves_it_for_download(tmp_path: Path) -> None:
    size, html = page_of_a_table(tmp_path, [f"level {i}" for i in range(320)])
    assert size == 206_082
    assert len(html) < 100_000
    assert "206,082 figures, more than a page can show" in html
    assert "<svg" not in html
    assert FLAGGED not in html, "nothing of the table is on the page"
    assert FLAGGED in page_of_a_table(tmp_path, ["a", "b"])[1], "control"


@pytest.mark.slow
def test_such_a_table_is_whole_in_the_workbook_and_in_print_in_time(tmp_path: Path) -> None:
    """In processor time, which other work on the machine does not change; it grew with the square of the table once."""
    job, form, _ = table_of([f"level {i}" for i in range(320)])
    began = time.process_time()
    (tmp_path / "wide.csv").write_text(wide_text(form), encoding="utf-8")
    write_workbook(tmp_path / "tables.xlsx", job, [form], {"guarantee_in_words": "words"})
    assert time.process_time() - began < 60.0
    wide = pd.read_csv(tmp_path / "wide.csv")
    assert wide.shape[0] * (321 * 2) >= 206_082
    with zipfile.ZipFile(tmp_path / "tables.xlsx") as book:
        sheet = book.read("xl/worksheets/sheet2.xml")
    assert sheet.count(b"<v>") > 206_082
    assert 'rightToLeft="1"' not in sheet[:2000].decode()


def aligned(path: Path, cells: list[str]) -> list[str | None]:
    """Where the texts of cells of the first table begin."""
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    with zipfile.ZipFile(path) as book:
        sheet, styles = (ElementTree.fromstring(book.read(f"xl/{name}.xml")) for name in ("worksheets/sheet2", "styles"))
    formats = styles.find(f"{space}cellXfs")
    assert formats is not None
    style = {cell.get("r"): formats[int(cell.get("s", "0"))] for cell in sheet.iter(f"{space}c")}
    found = [style[cell].find(f"{space}alignment") for cell in cells]
    return [None if each is None else each.get("horizontal") for each in found]


def test_the_sheet_of_a_language_that_is_written_from_the_right_begins_there(public: Path, tmp_path: Path) -> None:
    """Its title, notes and labels too: from the left they would run out of the sheet, or into the figures."""
    with zipfile.ZipFile(public / "tables.xlsx") as book:
        assert 'rightToLeft="1"' in book.read("xl/worksheets/sheet2.xml")[:2000].decode()
    texts = ["A1", "A2", "A5", "A6", "A10"]
    assert aligned(public / "tables.xlsx", texts) == ["right"] * 5
    job, form, _ = table_of(["a", "b"])
    write_workbook(tmp_path / "tables.xlsx", job, [form], {"guarantee_in_words": "words"})
    assert aligned(tmp_path / "tables.xlsx", texts) == [None] * 5, "control"


def test_a_workbook_names_the_files_of_tables_for_which_it_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two equal tables and a small one, which fits after one that does not. Control: room for all."""
    job, form, _ = table_of(["a", "b"])
    cells = len(form.rows) * (len(form.stub) + len(form.printed))
    small = replace(form, rows=form.rows[:1], values=form.values[:1], margins=form.margins[:1])
    for most, fit in ((4 * cells, [True, True, True]), (2 * cells - 1, [True, False, True])):
        monkeypatch.setattr(workbook, "MOST_CELLS", most)
        write_workbook(tmp_path / "tables.xlsx", job, [form, form, small], {"guarantee_in_words": "words"})
        with zipfile.ZipFile(tmp_path / "tables.xlsx") as book:
            sheets = [book.read(f"xl/worksheets/sheet{k}.xml").decode() for k in (2, 3, 4)]
            texts = book.read("xl/sharedStrings.xml").decode()
        assert [sheet.count("<v>") > 4 for sheet in sheets] == fit
        assert (f"no room for this table: it is in tables/{form.name}.csv" in texts) == (not all(fit))


def test_memory_of_a_page_does_not_grow_with_the_number_of_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12 and of 36 tables of 1,922 figures, of which the page shows one. Control: all tables in memory at once."""
    job, _, table = table_of([f"level {k}" for k in range(30)])
    monkeypatch.setattr(page_writer, "MOST_FIGURES_OF_MANY", (2_000,))
    peaks = dict[tuple[int, bool], int]()
    for number, at_once in ((12, False), (36, False), (36, True)):
        tables = tuple(job.tables[0].model_copy(update={"name": f"t{k}"}) for k in range(number))
        many = job.model_copy(update={"tables": tables})
        for one in tables:
            pq.write_table(table, tmp_path / f"{one.name}.parquet")
        written = written_tables(many, tmp_path, None, {})
        tracemalloc.start()
        write_page(tmp_path / "index.html", many, list(written) if at_once else written, STATEMENT)
        peaks[number, at_once] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[36, False] < 1.3 * peaks[12, False]
    assert peaks[36, True] > 2.0 * peaks[12, False]


def test_a_page_stays_light_where_labels_are_long(tmp_path: Path) -> None:
    size, html = page_of_a_table(tmp_path, [f"{i} {'label ' * 60}" for i in range(36)])
    assert size == 2738
    assert len(html.encode()) < 1_000_000
    assert "2,738 figures, more than a page can show" in html
    assert "figures, more than a page can show" not in page_of_a_table(tmp_path, [f"{i} label" for i in range(36)])[1]


def test_a_drawing_tells_its_groups_and_cells_apart_however_many_and_long_they_are() -> None:
    """Ten groups have ten looks and whole names; cells that differ in their last column alone have labels that differ."""
    groups = ["published", "synthetic records", "laplace", "laplace_composed", "laplace_finest", "reference_only"]
    groups += ["fbs", "fbs_records", "fbp", "fbp_records"]
    cells = [f"Biological, agricultural and environmental life sciences, {sex}" for sex in ("Female", "Male", "Total")]
    values = np.arange(30.0).reshape(3, 10)
    drawn = str(chart("errors", cells, groups, values, values - 1, values + 1, 0))
    legend = dict(re.findall(r'<circle class="([^"]+)" cx="5" cy="5" r="4"/></svg><bdi>([^<]+)</bdi>', drawn))
    assert list(legend.values()) == groups
    assert len(legend) == len(groups), "two groups look alike"
    assert re.findall(r"<div><span><bdi>([^<]+)</bdi>", drawn) == cells


def test_a_withheld_figure_is_left_out_of_the_drawing_with_the_mark_of_the_table() -> None:
    """It was drawn as a bar without a dot. Control: other figures have both."""
    _, form, _ = table_of(["a", "b", "c"])
    values = form.values.copy()
    values[0, 1] = np.nan
    (whole, *_), (drawn, *_) = (
        [str(plot.drawing) for plot in plots(replace(form, values=figures)) if plot.title.startswith("Mean")]
        for figures in (form.values, values)
    )
    assert [each.count('<line class="bar') - drawn.count('<line class="bar') for each in (whole, drawn)] == [1, 0]
    assert [each.count(f">{NO_ESTIMATE}</text>") for each in (whole, drawn)] == [0, 1]


@pytest.mark.parametrize(("most", "decimals", "ticks"), [(12.5, 0, 2.5), (1.25, 1, 0.25), (10.0, 0, 2.0)])
def test_ticks_of_a_drawing_read_what_they_are(most: float, decimals: int, ticks: float) -> None:
    """Steps of 2.5 and .25 were 2, 5, 8 and .2, .5, .8. Control: whole steps."""
    values = np.array([[most / 5.0], [most / 2.0], [most]])
    drawn = str(chart("counts", ["a", "b", "c"], ["all"], values, values, values, decimals))
    read = [float(text) for text in re.findall(r'class="tick"[^>]*>([^<]+)<', drawn)]
    np.testing.assert_allclose(read, np.arange(6) * ticks)


def test_a_drawing_is_as_wide_as_the_page_allows(html: str) -> None:
    """Its positions are per cents of its width, and no rule of style gives it a least width. It needs no scrolling."""
    drawings = re.findall(r'<div class="chart".*?</div></div>', html, re.DOTALL)
    across = [each for drawing in drawings for each in re.findall(r'(?:x1|x2|cx|x)="([^"]+)"', drawing)]
    assert len(across) > 50
    assert all(each == "5" or (each.endswith("%") and 0.0 <= float(each[:-1]) <= 100.0) for each in across)
    assert "viewBox" not in html
    assert all(
        not re.search(r"min-width: *[^0 ;]", rule) for rule in re.findall(r"\.(?:chart|rows|legend)[^{]*\{([^}]*)\}", html)
    )
    assert not re.search(r'class="scroll"[^>]*>\s*<div class="chart"', html)
