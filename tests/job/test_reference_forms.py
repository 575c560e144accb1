"""A reference has one form, and a form has the keys that are its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dpdist.core.errors import JobError
from dpdist.core.minisign import SecretKey
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.job.reference import KEYS, UNWRITTEN, FileReference, HistogramsAlone, ReleaseReference, SimulatedReference

TEXT = """
dataset: example
period: "2020"
columns:
  region: {levels: [north, south]}
  pay: {bounds: [1, 9], outside: clip}
  weight: {bounds: [1, 100], outside: clip}
survey: {weight: weight}
outcome: pay
mechanism: {name: tables}
budget: {epsilon: "1", adjacency: zero_out}
reference: %s
tables:
  - {name: pay, by: [region], statistics: [count, {mean: pay}]}
"""
SIGNER = SecretKey(b"12345678", bytes(32)).public.line
HISTOGRAM = '{epsilon: "1/4"}'
SURVEY = "{kind: doctorates, population: 10, sample: 5, seed: 1}"
KEY_REMEDY = "name the .pub file that `dpdist keygen` wrote, or give its second line"
FORMS = {
    "{path: a.parquet, encoding: latin-1}": FileReference,
    f"{{simulate: {SURVEY}}}": SimulatedReference,
    "{release: a}": ReleaseReference,
    f"{{release: a, key: {SIGNER}}}": ReleaseReference,
    f"{{histogram: {HISTOGRAM}}}": HistogramsAlone,
}


def job(reference: str) -> Job:
    return parse_job(TEXT % reference)


def schema_of_the_key() -> list[dict[str, Any]]:
    choices = Job.model_json_schema()["properties"]["reference"]["anyOf"]
    return next(choice["oneOf"] for choice in choices if "oneOf" in choice)


@pytest.mark.parametrize("text", FORMS)
def test_a_reference_is_of_the_form_that_its_keys_name(text: str) -> None:
    assert type(job(text).reference) is FORMS[text]


def test_without_one_histograms_stand_in() -> None:
    assert type(job("null").reference) is HistogramsAlone


def test_the_schema_names_one_form_of_several() -> None:
    """Each key that names a form stands in its own form alone; a release may have a histogram beside it."""
    schema = Job.model_json_schema()
    forms = [set(schema["$defs"][one["$ref"].rpartition("/")[2]]["properties"]) for one in schema_of_the_key()]
    named = [form & {"path", "simulate", "release", "histogram"} for form in forms]
    assert named == [{"path"}, {"simulate"}, {"release", "histogram"}, {"histogram"}]


@pytest.mark.parametrize("text", FORMS)
def test_a_written_job_has_every_key_and_is_read_back(text: str) -> None:
    """Its published form leaves paths and encodings out. Control: these are in the whole one."""
    said = job(text)
    whole = said.model_dump(mode="json")
    assert tuple(whole["reference"]) == tuple(name for name in KEYS if name not in UNWRITTEN or name in text)
    assert Job.model_validate(whole) == said
    assert tuple(said.public["reference"]) == ("simulate", "histogram", "period", "provenance")
    again = Job.model_validate(json.loads(json.dumps(said.public)))
    assert again.public == said.public


ONE_FORM_REMEDY = "keep the keys of one form; where a job extends another, set inherited keys of the other form to null"


@pytest.mark.parametrize(
    ("text", "found", "remedy"),
    [
        ("{path: a, release: b}", "inconsistent", ONE_FORM_REMEDY),
        ("{relase: a}", "unknown key", "did you mean 'release'?"),
        ("{histgram: {epsilon: '1/4'}}", "unknown key", "did you mean 'histogram'?"),
        ("{pth: a}", "unknown key", "did you mean 'path'?"),
        ("{release: a, encoding: latin-1}", "'release' has no encoding", "leave it out, or use path"),
        ("{path: a, key: " + SIGNER + "}", "'path' has no key", "leave it out, or use release"),
        ("{release: a, key: nobody.pub}", "'nobody.pub' is neither a public key nor the file of one", KEY_REMEDY),
        ("{release: a, key: 7}", "7", "write it in quotes"),
        ("{period: '2019'}", "no file is named", "add path, an earlier period's file that is public"),
        ("a.parquet", "'a.parquet'", "see README for a job file"),
    ],
)
def test_a_reference_of_no_form_or_of_two_is_refused_with_a_remedy(text: str, found: str, remedy: str) -> None:
    with pytest.raises(JobError) as refused:
        job(text)
    (problem,) = refused.value.problems
    assert (problem.fault, problem.remedy) == (found, remedy)
