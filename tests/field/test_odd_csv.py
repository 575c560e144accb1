"""Odd CSV files: each is read, or refused with a message that names the cause."""

from __future__ import annotations

import gzip
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpdist.core.errors import DataError
from dpdist.job import TextFile
from dpdist.job.loading import parse_job
from dpdist.survey.census import take_census
from dpdist.survey.source import open_source

JOB = """
dataset: csv
period: "2024"
columns:
  region: {levels: [Île, Léon, São]}
  code: {levels: [1, 2, 3]}
  income: {bounds: [0, 20000], outside: clip}
  weight: {bounds: [1, 60], outside: clip}
survey: {weight: weight}
outcome: income
mechanism: {name: tables}
budget: {epsilon: "1000", adjacency: substitution}
public_frame: {accepted: test}
tables:
  - {name: pay, by: [region], statistics: [count, {mean: income}]}
  - {name: pay2, by: [code], statistics: [count, {mean: income}]}
"""
RECORDS = 400


def people() -> pd.DataFrame:
    rng = np.random.default_rng(14)
    return pd.DataFrame(
        {
            "region": rng.choice(["Île", "Léon", "São"], RECORDS),
            "code": rng.integers(1, 4, RECORDS),
            "income": rng.gamma(2, 900, RECORDS).round(-1),
            "weight": rng.uniform(5, 50, RECORDS).round(2),
        }
    )


TEXT = people().to_csv(index=False)
HEAD = "region,code,income,weight"


def rows(form: Callable[[str, int, float, float], str]) -> str:
    return "\n".join([HEAD, *(form(*row) for row in people().itertuples(index=False)), ""])


def counted(path: Path, job: str = JOB, **written: str) -> int:
    own = parse_job(job)
    return int(take_census(own, open_source(own, path, TextFile.model_validate(written))).crosstab.count.sum())


READ: dict[str, bytes] = {
    "line breaks of old Macs": TEXT.replace("\n", "\r").encode(),
    "line breaks of Windows": TEXT.replace("\n", "\r\n").encode(),
    "a byte order mark before quotes": b"\xef\xbb\xbf" + TEXT.replace(HEAD, '"region","code","income","weight"').encode(),
    "no final line break": TEXT.rstrip("\n").encode(),
    "empty lines at the end": TEXT.encode() + b"\n\n\n",
    "the mark of the end of DOS": TEXT.replace("\n", "\r\n").encode() + b"\x1a",
    "a comma after every line": "\n".join(line + "," for line in TEXT.splitlines()).encode() + b"\n",
    "spaces around numbers": rows(lambda r, c, i, w: f"{r},{c}, {i:8.1f} ,  {w:7.2f}").encode(),
    "codes with a decimal place": rows(lambda r, c, i, w: f"{r},{c}.0,{i},{w}").encode(),
    "quotes around everything": people().to_csv(index=False, quoting=1).encode(),
}


@pytest.mark.parametrize("form", READ)
def test_an_odd_file_is_read(form: str, tmp_path: Path) -> None:
    (path := tmp_path / "survey.csv").write_bytes(READ[form])
    assert counted(path) == RECORDS


def test_several_compressed_parts_are_one_file(tmp_path: Path) -> None:
    half = len(TEXT.encode()) // 2
    parts = gzip.compress(TEXT.encode()[:half]) + gzip.compress(TEXT.encode()[half:])
    (path := tmp_path / "survey.csv.gz").write_bytes(parts)
    assert counted(path) == RECORDS


LEVELS: dict[str, tuple[str, str]] = {
    "accents as characters of their own": (unicodedata.normalize("NFD", TEXT), "Unicode form NFC"),
    "leading zeros": (rows(lambda r, c, i, w: f"{r},0{c},{i},{w}"), "leading zeros"),
    "plus signs": (rows(lambda r, c, i, w: f"{r},+{c},{i},{w}"), "a plus sign"),
    "spaces": (TEXT.replace(",1,", " ,1,"), "values that differ from declared levels only by spaces before or after them"),
    "single quotes": (
        TEXT.replace("Île", "'Île'"),
        "values that differ from declared levels only by quotation marks around them",
    ),
    "zero bytes": (TEXT.replace("Léon", "Léon\u200b"), "values that differ from declared levels only by"),
    "no accents": (TEXT.replace("Léon", "Leon"), "values that differ from declared levels only by accents"),
    "no-break spaces": (TEXT.replace("Léon", "\u00a0Léon"), "values that differ from declared levels only by spaces"),
    "full-width digits": (rows(lambda r, c, i, w: f"{r},{chr(0xFF10 + c)},{i},{w}"), "full-width"),
    "a mark of SAS": (TEXT.replace("Léon", "."), "marks of missing values in other programs"),
    "a mark of R": (TEXT.replace("Léon", "<NA>"), "marks of missing values in other programs"),
}


@pytest.mark.parametrize("form", LEVELS)
def test_a_value_that_is_nearly_a_level_is_refused_with_the_difference(form: str, tmp_path: Path) -> None:
    """Clipping codes is no remedy for another spelling. Control: a value like no level has no such cause."""
    text, told = LEVELS[form]
    (path := tmp_path / "survey.csv").write_text(text, encoding="utf-8", newline="")
    with pytest.raises(DataError, match=told) as refused:
        counted(path)
    assert "outside: clip" not in refused.value.text()
    path.write_text(TEXT.replace("Léon", "elsewhere"), encoding="utf-8")
    with pytest.raises(DataError, match="region: the file contains values that are not among the declared levels") as other:
        counted(path)
    assert "differ from declared" not in other.value.text()


@pytest.mark.parametrize(
    ("theirs", "taken"),
    [("cp1252", "latin-1"), ("utf-8", "latin-1"), ("utf-8", "cp1252"), ("mac-roman", "latin-1"), ("cp850", "cp1252")],
)
def test_an_encoding_that_is_taken_for_another_is_named(theirs: str, taken: str, tmp_path: Path) -> None:
    """The euro sign and quotes of Windows are control characters in Latin-1. Control: with its own encoding it is read."""
    sign = "€" if theirs == "cp1252" else "ô"
    job = JOB.replace("São", f"S{sign}o")
    (path := tmp_path / "survey.csv").write_bytes(TEXT.replace("São", f"S{sign}o").encode(theirs))
    with pytest.raises(DataError, match=f"write encoding: {theirs} next to the file's path"):
        counted(path, job, encoding=taken)
    assert counted(path, job, encoding=theirs) == RECORDS


NUMBERS: dict[str, tuple[Callable[[float], str], str]] = {
    "commas of thousands": (lambda i: f'"{i + 1e6:,.1f}"', "thousands separators"),
    "underscores": (lambda i: f"{int(i) + 1000000:_}", "thousands separators"),
    "a comma that may be either": (lambda i: f'"{int(i) + 1000:,}"', "if it separates thousands"),
    "decimal commas": (lambda i: f'"{i:.1f}"'.replace(".", ","), "decimal comma"),
    "exponents of Fortran": (lambda i: f"{i:.3E}".replace("E", "D"), "Fortran"),
    "full-width digits": (lambda i: "".join(chr(ord(d) + 0xFEE0) for d in str(int(i))), "ASCII digits"),
    "a currency": (lambda i: f"€{i:.0f}", "currency signs"),
    "a unit": (lambda i: f"{i:.0f} EUR", "units"),
    "accounting": (lambda i: f"({i:.0f})", "a leading minus sign"),
    "a limit": (lambda i: f"<{i:.0f}", "a range or a limit"),
    "a range": (lambda i: f"{i:.0f}-{i + 9:.0f}", "a range or a limit"),
    "a dot": (lambda i: ".", "mark missing values elsewhere"),
    "an extended missing value": (lambda i: ".a", "mark missing values elsewhere"),
    "N/A": (lambda i: "N/A", "mark missing values elsewhere"),
    "truth": (lambda i: "TRUE", "columns.income.codes"),
}


@pytest.mark.parametrize("form", NUMBERS)
def test_a_text_that_is_no_number_is_refused_with_its_form(form: str, tmp_path: Path) -> None:
    change, told = NUMBERS[form]
    text = rows(lambda r, c, i, w: f"{r},{c},{change(i)},{w}")
    (path := tmp_path / "survey.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=f"income: values that are not numbers(.|\n)*{told}"):
        counted(path)


FILES: dict[str, tuple[str, bytes, str]] = {
    "cut off": ("s.csv.gz", gzip.compress(TEXT.encode())[:-50], "its compressed data end too early: it was cut off"),
    "not compressed": ("s.csv.gz", TEXT.encode(), "its name ends in .gz, and it is not compressed"),
    "damaged": ("s.csv.gz", gzip.compress(TEXT.encode())[:60] + b"x" * 90, "its compressed data are damaged"),
    "compressed without the name": ("s.csv", gzip.compress(TEXT.encode()), "it is compressed by gzip"),
    "a workbook": ("s.csv", b"PK\x03\x04" + b"\0" * 60, "it is a zip archive, or a workbook"),
    "Parquet named CSV": ("s.csv", b"PAR1" + b"\0" * 60, "it is a Parquet file"),
    "CSV named Parquet": ("s.parquet", TEXT.encode(), "it is a file of texts, as CSV is"),
    "half a Parquet file": ("s.parquet", b"PAR1" + b"\0" * 60, "it is cut off or damaged"),
    "empty": ("s.csv", b"", "it is empty"),
    "Excel's first line": ("s.csv", b"sep=,\n" + TEXT.encode(), r"Excel's note of the separator \(sep=\)"),
    "a comment": ("s.csv", b"# exported 2024\n" + TEXT.encode(), "its first line is a comment"),
    "a comment with commas": ("s.csv", b"# exported, 2024, by, us\n" + TEXT.encode(), "its first line is a comment"),
    "tabs": ("s.tsv", TEXT.replace(",", "\t").encode(), r"files named .tsv are not read(.|\n)*add separator"),
    "text": ("s.txt", TEXT.encode(), r"files named .txt are not read(.|\n)*name it .csv"),
    "archive": ("s.zip", b"PK\x03\x04", r"files named .zip are not read(.|\n)*unpack it"),
    "sheet": ("s.xlsx", b"PK\x03\x04", r"files named .xlsx are not read(.|\n)*as CSV in UTF-8"),
    "R": ("s.rds", b"\x1f\x8b", r"files named .rds are not read(.|\n)*write it as Parquet"),
    "a header with spaces": (
        "s.csv",
        TEXT.replace(HEAD, HEAD.replace(",", ", ")).encode(),
        "differs only by spaces before or after",
    ),
    "header in capitals": (
        "s.csv",
        TEXT.replace(HEAD, HEAD.upper()).encode(),
        "income: missing column; a name in the file differs only by capital letters",
    ),
    "capital weight": ("s.csv", TEXT.replace("weight", "Weight").encode(), "differs only by capital letters"),
}


@pytest.mark.parametrize("form", FILES)
def test_a_file_that_is_not_read_is_refused_with_its_cause(form: str, tmp_path: Path) -> None:
    """No record is quoted."""
    name, content, told = FILES[form]
    (path := tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=told) as refused:
        counted(path)
    assert "Léon" not in refused.value.text().partition("allowed")[0]


def test_accents_of_a_name_in_another_unicode_form_are_named(tmp_path: Path) -> None:
    job = JOB.replace("region", "région")
    (path := tmp_path / "survey.csv").write_text(TEXT.replace("region", unicodedata.normalize("NFD", "région")))
    with pytest.raises(
        DataError, match="région: missing column; a name in the file differs only by the Unicode form of accents"
    ):
        counted(path, job)


def test_an_archive_with_a_csv_file_is_not_read_as_one(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "survey.csv.zip", "w") as archive:
        archive.writestr("survey.csv", TEXT)
    with pytest.raises(DataError, match="unpack it"):
        counted(tmp_path / "survey.csv.zip")
