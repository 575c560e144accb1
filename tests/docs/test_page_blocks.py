"""Every block of README and docs is run or parsed: jobs by the parser, commands by the command line, Python in order.

What a block's first line may say after its language:

- `fragment`: YAML that is a part of a job; its top-level keys are those of a job.
- `study`: YAML of a study.
- `file=NAME`: the block is also kept under that name in the page's temporary folder, for later blocks.
- `norun REASON`: not run; only in the pages that `NOT_RUN` lists.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import succeed
from pages import Block, blocks, name_of, pages

from dpdist import parse_job, parse_study
from dpdist.job import Job

NOT_RUN = {
    "README.md": 2,
    "docs/tutorials/microdata.md": 3,
    "docs/how-to/cluster.md": 2,
    "docs/how-to/install.md": 3,
    "docs/how-to/centred.md": 2,
    "docs/how-to/rehearse.md": 1,
    "docs/how-to/papers.md": 1,
    "docs/reference/python.md": 1,
    "docs/how-to/ledger.md": 1,
    "docs/how-to/periods.md": 1,
    "docs/how-to/present.md": 1,
    "docs/how-to/verify.md": 3,
    "docs/explanation/accuracy.md": 2,
    "docs/extending.md": 3,
}
"""How many blocks of a page are not run: each says why."""
SHOWN = ("", "text", "csv", "json")
"""Languages of blocks that are only read: outputs, files, pictures."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.long) if page.name == "rehearse.md" else page for page in pages()],
    ids=name_of,
)
def test_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the page's order, in one folder; names of Python stay from block to block."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if not block.norun:
            try:
                run(block, names)
            except BaseException as error:
                error.add_note(f"{block.page}, line {block.line}")
                raise


def run(block: Block, names: dict[str, Any]) -> None:
    """Run or parse one block in the present folder."""
    if block.file is not None:
        Path(block.file).write_text(block.text, encoding="utf-8")
    if block.language == "yaml":
        parse(block)
    elif block.language == "python":
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(block.text, f"{block.page}:{block.line}", "exec"), names)
    elif block.language == "bash":
        for line in commands(block):
            command(line)
    elif block.language not in SHOWN and block.file is None and not block.language.startswith("{"):
        raise AssertionError(f"nobody knows how to run '{block.language}': mark the block norun, with the reason")


def parse(block: Block) -> None:
    """YAML as a job, a study, or a part of a job."""
    if "study" in block.marks:
        parse_study(block.text)
    elif "fragment" in block.marks:
        said = yaml.safe_load(block.text)
        assert isinstance(said, dict)
        assert set(said) <= set(Job.model_fields), f"no keys of a job: {sorted(set(said) - set(Job.model_fields))}"
    else:
        parse_job(block.text, folder=Path())


def commands(block: Block) -> Iterator[str]:
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line


def command(line: str) -> None:
    """A line that begins with dpdist, by the command line itself."""
    program, *said = shlex.split(line, comments=True)
    assert program == "dpdist", f"only dpdist is run here, not {program}: mark the block norun, with the reason"
    succeed(*said, catch_exceptions=False)


def test_blocks_that_are_not_run_are_known_and_say_why() -> None:
    """So many in each page, no others, each with a reason of at least two words."""
    found = [block for page in pages() for block in blocks(page) if block.norun]
    assert {block.page: sum(each.page == block.page for each in found) for block in found} == NOT_RUN
    assert [(block.page, block.line) for block in found if len(block.marks) < 3] == []
