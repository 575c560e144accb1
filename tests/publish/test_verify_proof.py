"""`dpdist verify` derives the claim again: it refuses less ε, another record and less noise, and says what is open."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import invoke, succeed
from named_draws import named
from small_jobs import cases
from small_release import JOB, survey
from small_runs import run
from test_verify import vouch

import dpdist
from dpdist.opening.verifying import problems, verify_folder

COUNTED = JOB.replace("{name: tables", "{name: perturbed_histogram, bins: 5").replace("survey: {weight: weight}\n", "")
COUNTED = COUNTED.replace("by: [field, sex]", "by: [field]").replace("  sex: {levels: [f, m]}\n", "")
COUNTED = COUNTED.replace("  weight: {bounds: [1, 60], outside: clip}\n", "") + "synthetic_sets: 2\n"
PROOF, JOB_FILE, PROMISE = "released/proof.json", "released/job.json", "released/promise.json"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets, so that the query is asked twice: ε = 3, in noise of scale 2/3 on each count."""
    folder = tmp_path_factory.mktemp("proof")
    with named("proof"):
        dpdist.run(COUNTED, folder / "ws", survey(300))
    return folder / "ws" / "public"


@pytest.fixture
def public(released: Path, tmp_path: Path) -> Path:
    shutil.copytree(released, tmp_path / "public")
    return tmp_path / "public"


def edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_the_claim_is_derived_again_and_what_is_open_is_listed(public: Path) -> None:
    done = succeed("verify", public)
    lines = done.splitlines()
    assert lines[1] == "derived again from 1 query: epsilon = 3, and the statement has 3"
    assert all(line.startswith("not checked: ") for line in lines[2:])
    assert [line.split()[2] for line in lines[2:5]] == ["that"] * 3
    assert [line.split()[2] for line in lines[5:]] == [
        *(
            f"released/{name}:"
            for name in ("job.json", "promise.json", "frame.parquet", "seed", "set-1.json", "set-2.json")
        ),
        "manifest.json:",
        "who",
    ]
    printed = json.loads(invoke("verify", public, "--json").output)
    assert printed["derived"] == lines[1]
    assert [f"not checked: {text}" for text in printed["not_checked"]] == lines[2:]


def less_epsilon(public: Path) -> None:
    edited(public / "statement.json", lambda statement: statement.update(epsilon="2"))


def less_epsilon_in_all_words(public: Path) -> None:
    """A forger who changes job, promise and statement alike, and leaves the noise as it was drawn."""
    edited(public / JOB_FILE, lambda job: job["budget"].update(epsilon="2"))
    for name in ("statement.json", PROMISE):
        twice = {"epsilon": "2", "epsilon_per_set": "1", "substitution_epsilon": "4"}
        edited(public / name, lambda statement, twice=twice: statement.update(twice))


def less_epsilon_in_the_record_too(public: Path) -> None:
    less_epsilon_in_all_words(public)
    total = {"epsilon": "2", "substitution_epsilon": "4"}
    edited(public / PROOF, lambda proof: proof["total"].update(total))
    edited(public / PROOF, lambda proof: proof["queries"][0].update(scale="1"))


def of_query(**edits: object) -> Callable[[Path], None]:
    return lambda public: edited(public / PROOF, lambda proof: proof["queries"][0].update(edits))


def shifted(public: Path, column: str, factor: float) -> None:
    """The noisy figures with another value in a column; their metadata stays."""
    path = public / "measurements.parquet"
    table = pq.read_table(path)
    values = pa.array(table[column].to_pandas() * factor, table.schema.field(column).type)
    pq.write_table(table.set_column(table.column_names.index(column), table.schema.field(column), values), path)


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a smaller ε": (less_epsilon, 'statement.json: epsilon "2"'),
    "a smaller ε, also in the job": (less_epsilon_in_all_words, f'{PROOF}: total {{"epsilon": "3", '),
    "a smaller ε everywhere, but not in the noise": (
        less_epsilon_in_the_record_too,
        "measurements.parquet: discrete_laplace noise of scale 0.666666667 in steps of its lattice",
    ),
    "another scale": (of_query(scale="3/4"), f'{PROOF}: scale of query 1 "3/4"'),
    "another sensitivity": (
        of_query(distance={"off": "1", "same_x": "1", "anywhere": "2"}),
        f'{PROOF}: distance of query 1 {{"off": "1", "same_x": "1", "anywhere": "2"}}',
    ),
    "a query asked once": (of_query(times=1), f"{PROOF}: times of query 1 1"),
    "a query dropped": (
        lambda public: edited(public / PROOF, lambda proof: proof.update(queries=[])),
        f"{PROOF}: 0 queries",
    ),
    "another class": (
        lambda public: edited(public / PROOF, lambda proof: proof.update(guarantee="asymptotic")),
        f'{PROOF}: guarantee "asymptotic"',
    ),
    "a later format": (
        lambda public: edited(public / PROOF, lambda proof: proof.update(format=2)),
        f"{PROOF}: format 2, which a dpdist later than {version('dpdist')} wrote",
    ),
    "no record in the file": (lambda public: (public / PROOF).write_text("[]") and None, f"{PROOF}: a JSON list"),
    "figures of less noise": (
        lambda public: shifted(public, "scale", 0.5),
        "measurements.parquet: discrete_laplace noise of scale 0.333333333 in steps of its lattice",
    ),
    "figures of more sets": (
        lambda public: shifted(public, "set", 0.0) or doubled(public),
        "measurements.parquet: noisy figures of 3 sets",
    ),
}


@pytest.mark.parametrize("name", ["tables-two-tables", "tables-gaussian", "tables-add_remove-residuals"])
def test_parts_of_a_budget_that_sum_above_it_are_refused(name: str, inputs: Path, tmp_path: Path) -> None:
    """One table of a package has a tenth less noise than its part; control: as released, no scale is left unchecked."""
    run(name, cases()[name], inputs, tmp_path / "ws")
    public = tmp_path / "ws" / "public"
    assert problems(public) == []
    done = invoke("verify", public)
    assert "no query states" not in done.output
    table = pq.read_table(public / "measurements.parquet")
    last = np.array(table["table"].to_pylist()) == table["table"].to_pylist()[-1]
    assert 0 < last.sum() < len(last)
    place = table.column_names.index("scale")
    scale = pa.array(np.where(last, 0.9, 1.0) * table["scale"].to_numpy())
    pq.write_table(table.set_column(place, "scale", scale), public / "measurements.parquet")
    vouch(public)
    assert any("of query 'sums of residuals by tables' cells'" in str(fault) for fault in problems(public))


def doubled(public: Path) -> None:
    """The same figures under the numbers of three sets."""
    path = public / "measurements.parquet"
    table = pq.read_table(path)
    sets = pa.array([place % 3 for place in range(len(table))], pa.int32())
    pq.write_table(table.set_column(table.column_names.index("set"), table.schema.field("set"), sets), path)


@pytest.mark.parametrize("how", REFUSED)
def test_a_claim_that_does_not_follow_is_refused_by_name(public: Path, how: str) -> None:
    """The forger has written the manifest again: every checksum holds."""
    assert problems(public) == [], "control"
    act, line = REFUSED[how]
    act(public)
    vouch(public)
    faults = problems(public)
    assert faults[0].startswith(line), faults
    with pytest.raises(dpdist.core.errors.WorkspaceError, match="allowed"):
        dpdist.open_release(public)


def test_a_record_with_other_words_is_the_same(public: Path) -> None:
    edited(public / PROOF, lambda proof: proof.update(composition="sequential", holds="for every file"))
    of_query(name="sums")(public)
    vouch(public)
    assert problems(public) == []
    assert any(line.startswith(f"texts in {PROOF}") for line in verify_folder(public).unchecked)


def test_a_release_without_a_record_is_one_of_an_earlier_version(public: Path) -> None:
    """As releases of 0.1.1 and earlier have none. A later one that lost its record is not whole."""
    (public / PROOF).unlink()
    vouch(public)
    assert problems(public) == [f"{PROOF}: missing, though dpdist {version('dpdist')} writes it"]
    for name in ("statement.json", "released/promise.json"):
        edited(public / name, lambda stated: stated.update(protected_by="0.1.1"))
    vouch(public)
    text = succeed("verify", public)
    assert "not checked: the claim, from its queries: the release has no proof record" in text


def test_the_record_follows_from_the_job_and_not_from_the_file(released: Path, tmp_path: Path) -> None:
    """Other people, other outcomes and weights at the bounds: the same bytes."""
    other = pd.DataFrame({"field": ["arts", "law"] * 20, "sex": ["f", "m"] * 20, "salary": 200_000.0, "weight": 60.0})
    dpdist.run(COUNTED, tmp_path / "ws", other)
    assert (tmp_path / "ws" / "public" / PROOF).read_bytes() == (released / PROOF).read_bytes()
