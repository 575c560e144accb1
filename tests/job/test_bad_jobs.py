"""A corpus of bad jobs: each file is named by its error and says, in its first lines, what the message must tell."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from dpdist.core.errors import JobError, Problem, escape
from dpdist.job.loading import load_job

pytestmark = pytest.mark.quick

FOLDER = Path(__file__).parent / "bad_jobs"
BAD = sorted(FOLDER.glob("*.yaml"))
SECONDS = 1.0
RAW = re.compile(r"\b(Tuple|Input|String|Dictionary|List) should\b|valid dictionary|ValueError|Extra inputs")
"""Words of the library that reads jobs, not of a job file."""


def expected(path: Path) -> dict[str, str]:
    """Of the file's first lines: where the problem is, what was found, what is allowed, the remedy, the line."""
    said = re.findall(r"^# (where|fault|allowed|remedy|line): (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert {"where", "fault", "remedy"} <= {name for name, _ in said}, path.name
    return dict(said)


def problems(path: Path) -> tuple[Problem, ...]:
    with pytest.raises(JobError) as refused:
        load_job(path)
    return refused.value.problems


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_job_gets_the_message_that_it_names_within_a_second_in_our_words(path: Path) -> None:
    """Every problem has a remedy, and no control character."""
    began = time.process_time()  # other work on the machine does not count
    found = problems(path)
    took = time.process_time() - began
    said = expected(path)
    line = f"line {said.pop('line')}" if "line" in said else ""
    own = [each for each in found if each.where == said["where"]]
    told = [each for each in own if all(text in getattr(each, part) for part, text in said.items())]
    assert [each for each in told if line in ("", *each.places)], found
    assert took < SECONDS, f"{took:.1f} s"
    for each in found:
        assert each.remedy
        assert not RAW.search(each.text()), each
        assert escape(each.text()) == each.text()


def test_an_outcome_that_several_statistics_need_is_one_problem() -> None:
    """There was a problem for each of them, of which ratios named other outcomes."""
    assert len(problems(FOLDER / "outcome_left_out.yaml")) == 1


def test_the_check_sees_words_of_the_library() -> None:
    assert RAW.search("Tuple should have at least 1 item after validation, not 0")
    assert not RAW.search("a list of 1 or more")


def test_what_every_bad_job_starts_from_is_valid(tmp_path: Path) -> None:
    bad = (FOLDER / "epsilon_in_words.yaml").read_text(encoding="utf-8")
    (tmp_path / "good.yaml").write_text(bad.replace("epsilon: plenty", 'epsilon: "10.8"'), encoding="utf-8")
    assert load_job(tmp_path / "good.yaml").dataset == "tiny"


def test_a_file_that_is_too_long_for_a_job_is_refused_unparsed(tmp_path: Path) -> None:
    """Parsed, 64 MiB took a minute and 2 GB. Control: a long comment."""
    path = tmp_path / "job.yaml"
    path.write_text("dataset: x\n" + "# a comment\n" * 1_000)
    assert "a text of" not in problems(path)[0].fault
    path.write_text("[" + "1," * 2**22 + "1]")
    began = time.process_time()
    assert problems(path)[0].fault == "a text of 8,388,611 characters"
    assert time.process_time() - began < SECONDS
