"""What a compiler says of a program is told without the lines that it quotes; a program reads its own folder alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dpdist.core.errors import JobError, ProgramError
from dpdist.job.loading import find_job, load_job
from dpdist.sampling.toolchain import check_program, without_source

SECRETS = "alpha,secret-1\nbeta,secret-2\ngamma,secret-3\n"
JOB = "doctorates_pooling"


def job_with_program(folder: Path, name: str) -> Path:
    text = find_job(JOB).read_text(encoding="utf-8").replace("partial_pooling.stan", name)
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    return folder / "job.yaml"


@pytest.mark.parametrize("name", ["records.csv", "../records.csv", "../other.stan", "link.stan"])
def test_a_job_reads_stan_files_of_its_own_folder_alone(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    for place in (folder / "records.csv", tmp_path / "records.csv", tmp_path / "other.stan"):
        place.write_text(SECRETS, encoding="utf-8")
    (folder / "link.stan").symlink_to(tmp_path / "records.csv")
    with pytest.raises(JobError) as refused:
        load_job(job_with_program(folder, name))
    (problem,) = refused.value.problems
    assert (problem.where, problem.fault) == (
        "model.program",
        f"'{name}' is not a Stan program within the job file's folder",
    )
    assert "secret" not in refused.value.text(show_values=True)


@pytest.mark.parametrize("name", ["own.stan", "programs/own.stan"])
def test_a_program_beside_the_job_or_below_it_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    shutil.copy(find_job(JOB).parent / "partial_pooling.stan", tmp_path / name)
    program = load_job(job_with_program(tmp_path, name)).likelihood.program
    assert program is not None
    assert program.name == "own.stan"


WRONG = {
    "no program at all": (SECRETS, "line 1", "secret"),
    "a name that is not in scope": (
        "parameters { real x; }\nmodel {\n  x ~ normal(0, y); // secret\n}\n",
        "line 3",
        "secret",
    ),
    "a type that does not fit": ("parameters { real x; }\nmodel {\n  x ~ normal(0); // secret\n}\n", "line 3", "secret"),
}


@pytest.mark.parametrize(("text", "line", "secret"), WRONG.values(), ids=WRONG)
def test_a_wrong_program_is_told_by_its_line_without_the_text(text: str, line: str, secret: str, tmp_path: Path) -> None:
    (tmp_path / "bad.stan").write_text(text, encoding="utf-8")
    with pytest.raises(ProgramError) as refused:
        check_program(tmp_path / "bad.stan", "embedded")
    assert "does not compile" in refused.value.fault
    assert line in refused.value.fault
    assert secret not in str(refused.value)


def test_a_program_includes_files_of_its_folder_alone(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    (tmp_path / "records.stan").write_text(SECRETS, encoding="utf-8")
    (folder / "own.stan").write_text("#include ../records.stan\nparameters { real x; }\n", encoding="utf-8")
    with pytest.raises(ProgramError) as refused:
        check_program(folder / "own.stan", "embedded")
    assert refused.value.fault == "it includes a file of another folder"
    (folder / "part.stan").write_text("parameters { real x; }\n", encoding="utf-8")
    (folder / "own.stan").write_text("#include part.stan\nmodel { x ~ normal(0, 1); }\n", encoding="utf-8")
    assert check_program(folder / "own.stan", "embedded")["parameters"] == {"x": 0}


QUOTING = """model.hpp:12:5: error: 'foo' was not declared in this scope
   12 |     secret_one(foo);
      |     ^~~~~~~~~~
Semantic error in 'a.stan', line 3, column 16 to column 26:
   -------------------------------------------------
     1:  secret_two
         ^
     2:  secret_three
   -------------------------------------------------

Identifier 'y' not in scope."""


def test_lines_that_a_message_quotes_are_left_out_and_all_others_stay() -> None:
    assert without_source(QUOTING).splitlines() == [
        "model.hpp:12:5: error: 'foo' was not declared in this scope",
        "Semantic error in 'a.stan', line 3, column 16 to column 26:",
        "Identifier 'y' not in scope.",
    ]
