"""CSV files with quoted line breaks, of any size and however they are written: every record is read once."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pyarrow as pa
import pytest

from dpdist.core.errors import DataError
from dpdist.survey import csv_file
from dpdist.survey.csv_file import CsvFormat, CsvSource

NAMES = ["region", "income", "comment"]


def rows(number: int) -> list[list[str]]:
    """Open answers of up to three lines, some empty, some with quotes and commas."""
    return [
        ["ns"[i % 2], str(i), "~".join(f"line {k}, x" for k in range(i % 4)) + '"q"' * (i % 5 == 0)] for i in range(number)
    ]


def text(records: list[list[str]], end: str, inside: str, names: list[str] = NAMES) -> str:
    written = io.StringIO(newline="")
    writer = csv.writer(written, lineterminator=end)
    writer.writerow(names)
    writer.writerows([[value.replace("~", inside) for value in record] for record in records])
    return written.getvalue()


def read(source: CsvSource, names: list[str] = NAMES) -> list[list[str | None]]:
    table = pa.Table.from_batches(list(source.batches(names)))
    return [list(record) for record in zip(*(table[name].to_pylist() for name in names), strict=True)]


BREAKS = ("\n", "\r\n", "\r")


@pytest.mark.parametrize(
    ("end", "inside", "last"),
    [*((end, inside, True) for end in BREAKS for inside in BREAKS), *((end, end, False) for end in BREAKS)],
)
def test_line_breaks_in_quotes_are_read_wherever_a_block_ends(
    end: str, inside: str, last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of every size, so that one ends at every byte. Arrow alone misreads a divided pair of CR and LF."""
    records, names = rows(40), NAMES if last else NAMES[::-1]
    (path := tmp_path / "survey.csv").write_bytes(
        text([record if last else record[::-1] for record in records], end, inside, names).encode()
    )
    expected = [[value.replace("~", inside.replace("\r\n", "\n")) or None for value in record] for record in records]
    for size in range(60, 400):
        monkeypatch.setattr(csv_file, "CSV_BLOCK_BYTES", size)
        assert read(CsvSource(path)) == expected, size


@pytest.mark.parametrize("form", ["utf-8", "utf-8-sig", "utf-16", "latin-1", "gz"])
def test_every_encoding_and_compression_has_line_breaks(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "CSV_BLOCK_BYTES", 300)
    records = [[*record[:2], record[2] + "é"] for record in rows(200)]
    content = text(records, "\r\n", "\r\n").encode("utf-8" if form == "gz" else form)
    path = tmp_path / ("survey.csv.gz" if form == "gz" else "survey.csv")
    path.write_bytes(gzip.compress(content) if form == "gz" else content)
    source = CsvSource(path, CsvFormat(form if form in ("utf-16", "latin-1") else "utf-8"))
    assert read(source) == [[value.replace("~", "\n") for value in record] for record in records]
    lines = text(records, "\n", "\n").split("\n")
    found = source.lines({7, 150})
    assert [lines[found[row] - 1].split(",")[:2] for row in (7, 150)] == [records[row][:2] for row in (7, 150)]


@pytest.mark.parametrize("inside", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_a_file_larger_than_a_block_is_read(inside: str, last: bool, tmp_path: Path) -> None:
    """As `make2.py` of the case writes it: 25,000 records with six lines each, of 6 MB."""
    names = ["region", "income", "weight", "comment"] if last else ["region", "comment", "income", "weight"]
    comment = "~".join(f"line {k} of an open answer, with commas" for k in range(6))
    records = [
        [*own, comment] if last else [own[0], comment, *own[1:]]
        for own in (["ns"[i % 2], str(1000 + 10 * (i % 50)), str(5 + i % 7)] for i in range(25_000))
    ]
    path = tmp_path / "survey.csv"
    path.write_text(text(records, inside, inside, names), newline="")
    assert path.stat().st_size > csv_file.CSV_BLOCK_BYTES
    table = pa.Table.from_batches(list(CsvSource(path).batches(["region", "income", "weight"])))
    assert table.num_rows == 25_000
    by_region = table.to_pandas().astype({"weight": int}).groupby("region")["weight"].sum().to_dict()
    assert by_region == {"n": sum(5 + i % 7 for i in range(0, 25_000, 2)), "s": sum(5 + i % 7 for i in range(1, 25_000, 2))}


def test_a_record_longer_than_a_block_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records before it are not read twice. Control: one beyond the larger blocks is refused with its length."""
    monkeypatch.setattr(csv_file, "CSV_BLOCK_BYTES", 400)
    records = rows(100)
    records[60][2] = "word~" * 700
    (path := tmp_path / "survey.csv").write_text(text(records, "\n", "\n"))
    expected = [[value.replace("~", "\n") or None for value in record] for record in records]
    assert read(CsvSource(path)) == expected
    records[60][2] = "word~" * 6_000
    path.write_text(text(records, "\n", "\n"))
    with pytest.raises(DataError, match="a line of more than 6,400 bytes"):
        read(CsvSource(path))


@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("row", [0, 30, 39])
def test_a_quotation_mark_that_is_not_closed_loses_no_record(column: int, row: int, tmp_path: Path) -> None:
    """Readers take the rest of the file for its field. Control: a mark within a field without quotes is text."""
    records = [["n", str(i), "x"] for i in range(40)]
    lines = [",".join(NAMES), *(",".join(record) for record in records)]
    fields = lines[row + 1].split(",")
    fields[column] = '"' + fields[column]
    (path := tmp_path / "survey.csv").write_text("\n".join([*lines[: row + 1], ",".join(fields), *lines[row + 2 :], ""]))
    with pytest.raises(DataError) as refused:
        read(CsvSource(path))
    (problem,) = refused.value.problems
    assert (problem.fault, problem.places) == ("a quotation mark that is not closed", (f"line {row + 2}",))
    fields[column] = fields[column][1:] + '" pipe'
    path.write_text("\n".join([*lines[: row + 1], ",".join(fields), *lines[row + 2 :], ""]))
    assert len(read(CsvSource(path))) == 40


@pytest.mark.parametrize("filler", ['x,"1\n2"\n', "x,1\n\n", "x,1\n"])
@pytest.mark.parametrize("size", [200, 1 << 20])
def test_a_line_of_too_many_fields_is_named_by_its_line(
    filler: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines count, whatever stands above: empty lines, and line breaks in quotes."""
    monkeypatch.setattr(csv_file, "CSV_BLOCK_BYTES", size)
    above = "a,b\n" + filler * 300
    (path := tmp_path / "survey.csv").write_text(above + "x,1,2\nx,1\n")
    with pytest.raises(DataError) as refused:
        read(CsvSource(path), ["a"])
    (problem,) = refused.value.problems
    assert (problem.fault, problem.places) == (
        "a line has a different number of fields",
        (f"line {above.count(chr(10)) + 1}",),
    )
