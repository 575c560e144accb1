"""Budgets so small, or written so, that arithmetic would tell of the records or never end."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import pytest

from dpdist.core.errors import JobError
from dpdist.core.progress import Event, without_sizes
from dpdist.job.loading import parse_job
from dpdist.job.values import LONGEST
from dpdist.privacy.noise import LARGEST_SCALE, whole_gaussian, whole_laplace
from dpdist.release import plan

OWN_NOISE = True

JOB = """
dataset: small
period: "2021"
input: {{simulate: {{kind: doctorates, population: 4000, sample: 400, seed: 1}}}}
columns:
  field:
    levels: [biology, computing, mathematics, physical_sciences, psychology, social_sciences, engineering, health]
  sex: {{levels: [male, female]}}
  salary: {{bounds: [0, 1000000], outside: clip}}
  weight: {{bounds: [1, 2000], outside: clip}}
survey: {{weight: weight}}
outcome: salary
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "{epsilon}"}}
{more}
tables:
{tables}
"""
TABLE = "  - {{name: t{k}, by: [field, sex], statistics: [count, {{mean: salary}}]}}\n"


def job_text(mechanism: str, epsilon: str, more: str = "", tables: int = 1) -> str:
    listed = "".join(TABLE.format(k=k) for k in range(tables))
    return JOB.format(mechanism=mechanism, epsilon=epsilon, more=more, tables=listed)


@pytest.mark.parametrize("first", ["0.9999999999999999", "0.9999999999"])
def test_what_histograms_leave_for_the_table_is_a_budget_too(first: str) -> None:
    """Noise of so small a rest saturates, and its sums then stand in the release to a thousandth of a record."""
    more = f'reference: {{histogram: {{epsilon: "{first}"}}}}'
    with pytest.raises(JobError, match="less than 1e-6 for the table"):
        parse_job(job_text("tables", "1", more))
    parse_job(job_text("tables", "1", 'reference: {histogram: {epsilon: "0.999"}}'))


@pytest.mark.parametrize("draw", [whole_laplace, whole_gaussian])
def test_noise_beyond_exact_arithmetic_is_never_drawn(draw: object) -> None:
    """Control: at the largest scale sums of up to 2^52 and noise of 40 scales are whole numbers of float64."""
    assert callable(draw)
    with pytest.raises(ValueError, match="exact"):
        draw(LARGEST_SCALE + 1, 3)
    noise = draw(LARGEST_SCALE, 1000)
    assert float(abs(noise).max()) + 2.0**52 < 2.0**53
    assert (noise % 1.0 == 0.0).all()


def test_a_budget_shared_by_too_many_figures_is_refused_before_anything_is_spent() -> None:
    mechanism = "laplace_composed, sensitivity: public"
    with pytest.raises(JobError, match=r"budget\.epsilon"):
        plan(parse_job(job_text(mechanism, "0.000001", tables=120)))
    plan(parse_job(job_text(mechanism, "0.000001")))


HANGING = ["1e9_99999999", "1e999_9999", "1_000", "1e+9_9", "1e-9_99999999", "0x10", "१", "1e٣"]


PARSING = """
from dpdist.core.errors import JobError
from dpdist.job.loading import parse_job
for text in {texts!r}:
    try:
        parse_job(text)
    except JobError as error:
        print("a number in quotes is expected" in str(error), flush=True)
"""


def test_a_number_is_looked_at_as_text_before_it_is_computed() -> None:
    """In a process of its own, which a hanging computation does not outlive."""
    numbers = [*HANGING, "1e99999", "9" * (LONGEST + 1), "1/0", "nan", "inf"]
    texts = [job_text("tables", number) for number in numbers]
    command = [sys.executable, "-c", PARSING.format(texts=texts)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert dict(zip(numbers, found, strict=True)) == dict.fromkeys(numbers, "True")


@pytest.mark.parametrize(
    ("text", "value"), [("10.8", "54/5"), ("1/3", "1/3"), ("1e-3", "1/1000"), (".5", "1/2"), ("+2", "2")]
)
def test_numbers_as_people_write_them_stay(text: str, value: str) -> None:
    assert parse_job(job_text("tables", text)).budget.epsilon == Fraction(value)


def test_of_secret_sizes_no_advance_of_protection_is_heard() -> None:
    """A large stratum's rounds advance by no unit, once a span: their number would tell n to a span. Control: tables do."""
    heard: list[Event] = []
    listener = without_sizes(heard.append)
    for name in ("protect", "tables"):
        listener(Event("begin", name, 0, 1))
        for _ in range(3):
            listener(Event("advance", name, 0, 1))
        listener(Event("advance", name, 1, 1))
        listener(Event("end", name, 1, 1))
    assert [each.kind for each in heard if each.stage == "protect"] == ["begin", "advance", "end"]
    assert [each.kind for each in heard if each.stage == "tables"].count("advance") == 1
