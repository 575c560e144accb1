"""codebook.xml: DDI Codebook 2.5 of the synthetic records, which says what stands in the files.

`GRAMMAR` is what the official schema, codebook.xsd of version 2.5, says of the elements in use: their children in order,
how often each may stand, and their attributes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pyreadstat
import pytest
from public_files import statement_of
from small_release import JOB, survey

import dpdist
from dpdist.job.loading import parse_job
from dpdist.publish.writers.csv_tables import plain

LEVELS = ["=SUM(A1)", "قانون", "arts & <letters>"]
PRESENTATION = """
presentation:
  title: Salaries of graduates
  universe: Graduates under 76
  source: Survey of graduates, 2021
  licence: CC BY 4.0
  contact: data@agency.example
  responsible: Agency
  language: en-GB
  formats: [csv, dta, sav, ddi]
  columns:
    field: {label: Field of degree, levels: {"=SUM(A1)": 法律}}
    salary: {label: Annual salary, unit: US dollars}
"""
GRAMMAR: dict[str, tuple[str, str]] = {
    "codeBook": ("docDscr* stdyDscr+ fileDscr* dataDscr* otherMat*", "version"),
    "docDscr": ("citation? notes*", ""),
    "stdyDscr": (
        "citation+ studyAuthorization* stdyInfo* method* dataAccs* othrStdyMat* notes*",
        "access",
    ),
    "citation": ("titlStmt rspStmt? prodStmt? distStmt? serStmt* verStmt* biblCit? holdings* notes*", "MARCURI"),
    "titlStmt": ("titl subTitl* altTitl* parTitl* IDNo*", ""),
    "prodStmt": ("producer* copyright? prodDate* prodPlac* software* fundAg* grantNo*", ""),
    "distStmt": ("distrbtr* contact* depositr* depDate* distDate?", ""),
    "stdyInfo": ("subject* abstract* sumDscr* qualityStatement? notes*", ""),
    "sumDscr": ("timePrd* collDate* nation* geogCover* geogUnit* geoBndBox? anlyUnit* universe* dataKind*", ""),
    "method": ("dataColl* notes* anlyInfo? stdyClas? dataProcessing* codingInstructions*", ""),
    "dataColl": ("timeMeth* dataCollector* sampProc* deviat* collMode* sources? collSitu* ConOps* weight* cleanOps*", ""),
    "sources": ("dataSrc* srcOrig* srcChar* srcDocu*", ""),
    "anlyInfo": ("respRate* EstSmpErr* dataAppr*", ""),
    "dataAccs": ("setAvail* useStmt* notes*", ""),
    "useStmt": ("confDec? specPerm? restrctn? contact* citReq? deposReq? conditions? disclaimer?", ""),
    "fileDscr": ("fileTxt* locMap? notes*", "URI"),
    "fileTxt": ("fileName? fileCont? fileStrc? dimensns? fileType? format? software* verStmt?", ""),
    "dimensns": ("caseQnty* varQnty* logRecL* recPrCas* recNumTot*", ""),
    "dataDscr": ("varGrp* nCubeGrp* var* nCube* notes*", ""),
    "var": (
        "location* labl* valrng* universe* txt* catgry* varFormat? notes*",
        "name wgt wgt-var weight files intrvl measUnit",
    ),
    "valrng": ("item|range key? notes*", ""),
    "range": ("", "UNITS min minExclusive max maxExclusive"),
    "catgry": ("catValu? labl* txt* catStat*", "missing"),
    "varFormat": ("", "type schema"),
    "software": ("", "version"),
    "confDec": ("", "required"),
}
NAME = "{ddi:codebook:2_5}"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    people = survey(300)
    people["field"] = people["field"].map({"arts": LEVELS[0], "law": LEVELS[1]})
    people.loc[:80, "field"] = LEVELS[2]
    text = JOB.replace("[arts, law]", json.dumps(LEVELS, ensure_ascii=False)) + PRESENTATION
    dpdist.run(parse_job(text), folder / "ws", people)
    return folder / "ws"


@pytest.fixture(scope="module")
def book(workspace: Path) -> ElementTree.Element:
    return ElementTree.parse(workspace / "public" / "codebook.xml").getroot()


def found(book: ElementTree.Element, path: str) -> list[str | None]:
    return [each.text for each in book.iterfind("/".join(NAME + step for step in path.split("/")))]


def problems(element: ElementTree.Element) -> list[str]:
    """Where an element and those below it are not as the schema has them."""
    name = element.tag.removeprefix(NAME)
    children, attributes = GRAMMAR.get(name, ("", ""))
    pattern = re.sub(r"([A-Za-z|]+)([*+?]?)", r"(?:(?:\1) )\2", children).replace(" (", "(")
    own = "".join(f"{child.tag.removeprefix(NAME)} " for child in element)
    wrong = [] if re.fullmatch(pattern, own) else [f"{name}: {own}"]
    known = {"ID", "{http://www.w3.org/XML/1998/namespace}lang", *attributes.split()}
    wrong += [f"{name}: {key}" for key in element.attrib if key not in known]
    wrong += [f"{name}: text"] if children and (element.text or "").strip() else []
    return [*wrong, *(problem for child in element for problem in problems(child))]


def test_it_is_as_the_schema_has_it_and_ids_are_those_that_are_referred_to(book: ElementTree.Element) -> None:
    assert book.tag == f"{NAME}codeBook"
    assert problems(book) == []
    ids = [each.get("ID") for each in book.iter() if each.get("ID")]
    assert len(set(ids)) == len(ids)
    referred = [each.get(key, "").split() for each in book.iter(f"{NAME}var") for key in ("files", "wgt-var", "weight")]
    assert {one for each in referred for one in each} <= set(ids)
    study = book.find(f"{NAME}stdyDscr")
    assert study is not None
    study.append(ElementTree.Element(f"{NAME}citation"))
    assert len(problems(book)) == 2, "control: a citation behind, and without a title"
    study.remove(study[-1])


def test_texts_are_those_of_the_presentation_and_the_statement(book: ElementTree.Element, workspace: Path) -> None:
    said = statement_of(workspace)
    assert found(book, "stdyDscr/citation/titlStmt/titl") == ["Salaries of graduates"]
    assert found(book, "stdyDscr/citation/distStmt/contact") == ["data@agency.example"]
    assert found(book, "stdyDscr/stdyInfo/sumDscr/universe") == ["Graduates under 76"]
    assert found(book, "stdyDscr/stdyInfo/sumDscr/timePrd") == ["2021"]
    assert found(book, "stdyDscr/method/dataColl/sources/dataSrc") == ["Survey of graduates, 2021"]
    assert found(book, "stdyDscr/method/anlyInfo/EstSmpErr") == said["standard_errors"]
    assert found(book, "stdyDscr/dataAccs/useStmt/conditions") == ["CC BY 4.0"]
    assert found(book, "stdyDscr/dataAccs/useStmt/confDec") == [said["guarantee_in_words"]]
    strict = ["synthetic survey records, made from what was released under differential privacy"]
    assert found(book, "stdyDscr/stdyInfo/sumDscr/dataKind") == (
        strict if said["guarantee"] == "strict" else ["synthetic survey records"]
    )


def test_every_file_is_described_as_other_readers_find_it(book: ElementTree.Element, workspace: Path) -> None:
    """Names, levels and labels of every variable of every file, and how many records it has."""
    public = workspace / "public"
    files = {each.get("ID"): each for each in book.iter(f"{NAME}fileDscr")}
    assert {each.get("URI") for each in files.values()} == {
        path.relative_to(public).as_posix() for path in (public / "synthetic").iterdir()
    }
    readers = {"parquet": pd.read_parquet, "csv": pd.read_csv}
    for number, described in files.items():
        path = public / str(described.get("URI"))
        labels, columns = {}, {}
        if path.suffix in (".dta", ".sav"):
            frame, meta = (pyreadstat.read_dta if path.suffix == ".dta" else pyreadstat.read_sav)(str(path))
            labels, columns = meta.variable_value_labels, meta.column_names_to_labels
        else:
            frame = readers[path.suffix[1:]](path)
        assert found(described, "fileTxt/dimensns/caseQnty") == [str(len(frame))]
        own = [each for each in book.iter(f"{NAME}var") if str(number) in str(each.get("files")).split()]
        assert [each.get("name") for each in own] == list(frame.columns)
        for each in own:
            name = str(each.get("name"))
            values = [str(value) for value in found(each, "catgry/catValu")]
            shown = dict(zip(values, found(each, "catgry/labl"), strict=True))
            if name in ("field", "sex"):
                met = {f"{value:.0f}" if isinstance(value, float) else str(value) for value in frame[name]}
                assert met <= {plain(value) if path.suffix == ".csv" else value for value in values}
                assert each.get("wgt-var") in {one.get("ID") for one in own if one.get("wgt") == "wgt"}
            if labels:
                assert shown == {f"{code:.0f}": label for code, label in labels.get(name, {}).items()}
                unit = each.get("measUnit")
                assert columns[name] == str(found(each, "labl")[0]) + (f" ({unit})" if unit else "")
        (salary,) = [each for each in own if each.get("name") == "salary"]
        limits = salary.find(f"{NAME}valrng/{NAME}range")
        assert limits is not None
        assert float(limits.get("min", "nan")) <= frame["salary"].min() <= frame["salary"].max() <= 200_000
