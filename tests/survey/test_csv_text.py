"""Files that cannot be read say why: the encoding, the separator, the kind of file; and records are found again by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdist.core.errors import DataError, Problem
from dpdist.job import Job
from dpdist.job.data import Input
from dpdist.job.loading import parse_job
from dpdist.job.reference import FileReference
from dpdist.survey.census import take_census
from dpdist.survey.csv_file import CsvFormat, CsvSource, lines_of
from dpdist.survey.reference_file import open_reference
from dpdist.survey.source import open_source

TEXT = """
dataset: tiny
period: "1"
columns:
  town: {levels: [Orléans, Brest]}
  salary: {bounds: [0, 1000]}
survey: {weight: weight}
outcome: salary
model: {family: lognormal}
mechanism: {name: unweighted}
budget: {epsilon: "1"}
tables: [{name: t, statistics: [count]}]
universe: [{column: town, keep: [Orléans]}]
"""
HEADER = "town,salary,weight\n"
ROWS = "Brest,1.5,2\nOrléans,2.5,3\nOrléans,3.5,4\n"
CANARY = "Orl"


@pytest.fixture
def job() -> Job:
    return parse_job(TEXT)


def problem(job: Job, path: Path) -> Problem:
    with pytest.raises(DataError) as refused:
        take_census(job, open_source(job, path))
    (only,) = refused.value.problems
    assert CANARY not in refused.value.text()
    return only


def written(folder: Path, content: bytes, name: str = "survey.csv") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


ENCODINGS = ["latin-1", "utf-16", "utf-16-le", "utf-16-be", "cp1252"]
DASH = {"cp1252": "Brest \u2013"}
"""A character of Windows' code page that Latin-1 lacks."""


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("rows", [3, 30_000])
def test_another_encoding_is_named_with_the_line_that_reads_the_file(
    encoding: str, rows: int, job: Job, tmp_path: Path
) -> None:
    """The remedy is taken at its word, for input and reference alike; control: without it the file is not read."""
    text = HEADER + "Brest,1.5,2\n" * rows + ROWS + (f"{DASH[encoding]},1.5,2\n" if encoding in DASH else "")
    path = written(tmp_path, text.encode(encoding))
    found = problem(job, path)
    assert (found.where, found.fault, found.allowed) == ("file", "bytes that are not UTF-8", "text in UTF-8")
    added = f"add encoding: {encoding} next to its path, as in {{path: survey.csv, encoding: {encoding}}}"
    assert found.remedy == f"{added}; where --input names it: --set 'input.encoding={encoding}'"
    assert found.places[0].startswith("line ")
    said = parse_job(TEXT.replace("Brest]", "Brest, Brest \u2013]") + f"input: {{path: {path}, encoding: {encoding}}}")
    assert take_census(said, open_source(said)).crosstab.count.sum() == 2
    reference = FileReference(path=str(path), encoding=encoding)
    assert take_census(said, open_source(job, path, reference)).crosstab.count.sum() == 2


@pytest.mark.parametrize(("said", "text"), [("utf-16", "utf-8"), ("utf-8", "latin-1"), ("ascii", "utf-8")])
def test_an_encoding_that_is_not_the_files_is_refused(said: str, text: str, job: Job, tmp_path: Path) -> None:
    path = written(tmp_path, (HEADER + ROWS).encode(text))
    own = job.model_copy(update={"input": Input(path=str(path), encoding=said)})
    with pytest.raises(DataError) as refused:
        take_census(own, open_source(own))
    (found,) = refused.value.problems
    assert found.fault == f"bytes that are not {said.upper()}"
    assert f"encoding: {text}" in found.remedy


def test_the_line_of_the_first_byte_that_is_not_utf8_is_named(job: Job, tmp_path: Path) -> None:
    found = problem(job, written(tmp_path, (HEADER + "Brest,1.5,2\n" * 30_000 + ROWS).encode("latin-1")))
    assert found.places == ("line 30003",)


@pytest.mark.parametrize(("mark", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
@pytest.mark.parametrize("decimal", [".", ","])
def test_another_separator_is_named(mark: str, name: str, decimal: str, job: Job, tmp_path: Path) -> None:
    """Decimal commas make lines of several fields of a header of one: the same cause."""
    text = (HEADER + ROWS).replace(",", mark).replace(".", decimal)
    found = problem(job, written(tmp_path, text.encode()))
    assert (found.fault, found.allowed) == (f"its fields are separated by {name}", "commas")
    shown = '"\\t"' if mark == "\t" else f'"{mark}"'
    assert f"{{path: survey.csv, separator: {shown}}}" in found.remedy
    if decimal == ".":
        own = parse_job(TEXT + f"input: {{path: {tmp_path / 'survey.csv'}, separator: {shown}}}")
        assert take_census(own, open_source(own)).crosstab.count.sum() == 2


def test_lines_are_found_in_another_encoding_and_with_another_separator(tmp_path: Path) -> None:
    path = written(tmp_path, (HEADER + ROWS).replace(",", ";").encode("utf-16"))
    assert lines_of(path, {1, 2}, CsvFormat("utf-16", ";")) == {1: 3, 2: 4}


def test_a_path_that_is_too_long_is_a_wrong_path(job: Job, tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        open_source(job, tmp_path / ("x" * 300 + ".csv"))
    (found,) = refused.value.problems
    assert (found.fault, found.remedy) == ("cannot be opened (File name too long)", "correct the path")


def test_the_line_of_a_record_counts_line_breaks_in_quotes_and_empty_lines(tmp_path: Path) -> None:
    rows = ['a,"one\ntwo",1', "", "b,c,2", "d,e,3"]
    path = written(tmp_path, ("x,y,z\n" + "\n".join(rows) + "\n").encode())
    lines = path.read_text().split("\n")
    found = lines_of(path, {0, 1, 2})
    assert [lines[found[row] - 1] for row in range(3)] == ['a,"one', "b,c,2", "d,e,3"]


@pytest.mark.parametrize("weight", ["1e300", "1e-300"])
def test_a_weight_that_no_population_has_is_refused(weight: str, job: Job, tmp_path: Path) -> None:
    found = problem(job, written(tmp_path, (HEADER + ROWS.replace(",3\n", f",{weight}\n")).encode()))
    assert (found.where, found.allowed, found.places) == ("weight", "weights from 1e-15 to 1e+15", ("line 3",))


ACCENTED = """
dataset: tiny
period: "2"
columns:
  âge: {levels: [jeune, âgé]}
  salary: {bounds: [0, 1000], outside: clip}
survey: {weight: weight}
outcome: salary
mechanism: {name: tables}
budget: {epsilon: "1", adjacency: substitution}
reference: {path: reference.csv}
tables: [{name: t, by: [âge], statistics: [count]}]
"""
OLD = "âge,salary,weight\n" + "jeune,1.5,2\nâgé,2.5,3\n" * 3


def refused(job: Job, path: Path) -> Problem:
    with pytest.raises(DataError) as error:
        take_census(job, open_source(job, path))
    return error.value.problems[0]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
@pytest.mark.parametrize("through", ["census", "columns"])
def test_a_header_in_another_encoding_is_refused_as_a_record_is(encoding: str, through: str, tmp_path: Path) -> None:
    """With the line and the encoding to write. Control: with that encoding the file is read."""
    path, own = written(tmp_path, OLD.encode(encoding)), parse_job(ACCENTED)
    with pytest.raises(DataError) as error:
        take_census(own, open_source(own, path)) if through == "census" else open_source(own, path).columns
    (found,) = error.value.problems
    assert (found.fault, found.allowed, found.places) == ("bytes that are not UTF-8", "text in UTF-8", ("line 1",))
    assert f"{{path: survey.csv, encoding: {encoding}}}" in found.remedy
    assert take_census(own, open_source(own, path, Input(encoding=encoding))).crosstab.count.sum() == 6


def test_a_reference_whose_header_is_in_another_encoding_is_refused_by_its_name(tmp_path: Path) -> None:
    own = parse_job(ACCENTED, folder=tmp_path)
    written(tmp_path, OLD.replace("1.5", "1.7").encode("latin-1"), "reference.csv")
    source = open_source(own, written(tmp_path, OLD.encode()))
    with pytest.raises(DataError, match="bytes that are not UTF-8") as error:
        open_reference(own, source, take_census(own, source).crosstab)
    assert error.value.source.endswith("reference.csv")
    assert "encoding: latin-1" in error.value.problems[0].remedy


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_a_file_in_utf8_that_is_declared_otherwise_is_recognised_by_its_columns(encoding: str, tmp_path: Path) -> None:
    """Their names are there, as UTF-8 looks in that encoding; and by its levels, where only these have accents."""
    path, own = written(tmp_path, OLD.encode()), parse_job(ACCENTED).model_copy(update={"input": Input(encoding=encoding)})
    found = refused(own, path)
    assert (found.where, found.allowed) == ("âge", "text in UTF-8")
    assert "write encoding: utf-8 next to its path" in found.remedy
    plain = parse_job(ACCENTED.replace("âge", "age")).model_copy(update={"input": Input(encoding=encoding)})
    by_level = refused(plain, written(tmp_path, OLD.replace("âge", "age").encode()))
    assert (by_level.where, by_level.allowed, by_level.count) == ("age", "text in UTF-8", 3)
    assert "write encoding: utf-8" in by_level.remedy


@pytest.mark.parametrize("name", ["Weight", "weigth", "wieght"])
def test_a_missing_column_is_answered_with_one_like_it(name: str, tmp_path: Path) -> None:
    """Control: of a name like none, no other is proposed."""
    own, path = parse_job(ACCENTED.replace("weight: weight", f"weight: {name}")), written(tmp_path, OLD.encode())
    assert refused(own, path).remedy == "did you mean 'weight'?"
    far = parse_job(ACCENTED.replace("weight: weight", "weight: stratum_size"))
    assert refused(far, path).remedy == "correct the name in the job or the file"


def test_a_first_line_that_is_too_long_is_named_with_its_columns(tmp_path: Path) -> None:
    """Control: a file of fewer columns is read."""
    wide, narrow = tmp_path / "wide.csv", tmp_path / "narrow.csv"
    for path, columns in ((wide, 600_000), (narrow, 60_000)):
        path.write_text(",".join(f"c{k:06d}" for k in range(columns)) + "\n" + ",".join("1" * columns) + "\n")
    with pytest.raises(DataError) as refused:
        _ = CsvSource(wide).columns
    (problem,) = refused.value.problems
    assert problem.fault == "a first line of 4,800,000 bytes, with 600,000 columns"
    assert (problem.allowed, problem.places) == ("one of at most 4,194,304 bytes", ("line 1",))
    assert "columns that the job names" in problem.remedy
    assert len(CsvSource(narrow).columns) == 60_000


def test_another_line_that_is_too_long_is_named(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("a,b\n1,2\n3," + "x" * (9 << 20) + "\n")
    with pytest.raises(DataError, match="a line of more than 4,194,304 bytes"):
        list(CsvSource(tmp_path / "long.csv").batches(["a"]))
