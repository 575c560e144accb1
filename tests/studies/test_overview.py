"""Several studies on one page: resumed, without those whose files are not here, refused where the file is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_study import STUDY

from dpdist.core.errors import StudyError
from dpdist.studies.run import Overview, load, run_overview

BOTH = """\
title: "Two studies <&>"
studies:
  - {{study: {folder}/small.yaml, replicates: 2, of: "A simulation"}}
  - {{study: nscg_tables, of: "Another, of a file"}}
notes: [{{title: "Not here", text: "Its files are in no registry."}}]
"""


@pytest.fixture
def overview(tmp_path: Path) -> Overview:
    (tmp_path / "small.yaml").write_text(STUDY.replace("rows: [", "published: {column: paper, replicates: 9}\n    rows: ["))
    (tmp_path / "both.yaml").write_text(BOTH.format(folder=tmp_path))
    made = load(tmp_path / "both.yaml")
    assert isinstance(made, Overview)
    return made


def test_one_page_has_every_study_and_names_those_that_did_not_run(overview: Overview, tmp_path: Path) -> None:
    folder = run_overview(overview, tmp_path / "out")
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "Two studies &lt;&amp;&gt;" in page
    assert 'id="small"' in page
    assert "Difference in its errors" in page
    assert "Its files are in no registry." in page
    assert "<code>--data</code> was not given: <code>nscg_tables</code>" in page
    assert (folder / "small" / "index.html").exists()
    assert not (folder / "nscg_tables").exists()
    part = folder / "small" / "parts" / "beta-00001.parquet"
    before = part.stat().st_mtime_ns
    run_overview(overview, folder, replicates=3)
    assert part.stat().st_mtime_ns == before
    assert "--replicates 3" in (folder / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('title: "T"\nstudies: []\n', "studies"),
        ('title: "T"\nstudies: [{study: modips_normal, of: "A"}, {study: modips_normal, of: "B"}]\n', "is named twice"),
        ('title: "T"\nstudies: [{study: modips_normal, of: "A", replicate: 3}]\n', "did you mean 'replicates'"),
        ("studies: 5\n", "title"),
    ],
)
def test_a_wrong_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(StudyError, match=message):
        load(tmp_path / "wrong.yaml")


def test_the_shipped_one_names_studies_that_exist(tmp_path: Path) -> None:
    shipped = load("papers")
    assert isinstance(shipped, Overview)
    assert all(load(entry.study) for entry in shipped.studies)
    with pytest.raises(StudyError, match="no such file"):
        run_overview(
            shipped.model_copy(update={"studies": (shipped.studies[0].model_copy(update={"study": "gone"}),)}), tmp_path
        )
