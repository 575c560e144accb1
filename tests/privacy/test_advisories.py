"""Which releases an advisory concerns, and that `dpdist verify` says so without another exit code."""

from __future__ import annotations

import json
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import invoke
from public_files import statement_of

import dpdist
from dpdist.core.files import sha256
from dpdist.core.public_files import MANIFEST, canonical, release_id
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.privacy.claims import ADVISORIES, advisories, loss_text, numbers_of

JOB = """
dataset: advised
period: "1"
columns:
  y: {bounds: [0, 3], outside: clip}
  weight: {bounds: [100, 200], outside: clip}
survey: {weight: weight}
outcome: y
mechanism: {name: modips, law: normal, truncation: bounded}
budget: {epsilon: "1"}
tables: [{name: t, statistics: [count]}]
"""
AFFECTED = {"as it is": ("", ""), "lognormal": ("law: normal", "law: lognormal")}
OTHERS = {
    "clamped": ("bounded", "clamped"),
    "no lower bound": ("[100, 200]", "[0, 200]"),
    "no weight": ("survey: {weight: weight}", "survey: {}"),
    "another mechanism": ("modips, law: normal, truncation: bounded", "tables"),
}


def job(old: str, new: str) -> Job:
    text = JOB.replace("y: {bounds: [0,", "y: {bounds: [1,") if "lognormal" in new else JOB
    return parse_job(text.replace(old, new) if old else text)


@pytest.mark.parametrize("what", AFFECTED)
@pytest.mark.parametrize("protected_by", [None, "", "0.0.9", "0.1.0", "0.1", "not a version"])
def test_an_advisory_names_the_jobs_and_versions_with_its_fault(what: str, protected_by: str | None) -> None:
    assert [each.name for each in advisories(job(*AFFECTED[what]), protected_by)] == ["2026-01"]


@pytest.mark.parametrize("what", OTHERS)
def test_other_jobs_are_not_named(what: str) -> None:
    assert advisories(job(*OTHERS[what]), "0.1.0") == []


@pytest.mark.parametrize("protected_by", ["0.1.1", "0.2.0", "0.10.0", "1.0", "1.0.0rc1"])
def test_later_versions_are_not_named(protected_by: str) -> None:
    assert advisories(job("", ""), protected_by) == []


def test_counts_of_levels_have_a_domain_that_no_weight_leaves() -> None:
    whole = JOB.replace("outside: clip}\n  weight", "outside: clip, whole: true}\n  weight")
    assert advisories(parse_job(whole.replace("law: normal", "law: multinomial")), "0.1.0") == []


def test_every_advisory_is_in_the_changelog_and_on_the_pages_of_security_and_verify() -> None:
    top = Path(__file__).parents[2]
    names = ("CHANGELOG.md", "SECURITY.md", "docs/how-to/verify.md")
    pages = [(top / name).read_text(encoding="utf-8") for name in names]
    assert all(each.name in page for each in ADVISORIES for page in pages)


FILE, HISTOGRAMS, RELEASE = ({"path": None, "period": "0"}, {"histogram": {"epsilon": "1/2"}}, {"release": "earlier"})
FORMER = {
    ("table_package", "file"): (FILE, True),
    ("table_package", "nothing"): (None, True),
    ("reference_tables", "file"): (FILE, False),
    ("reference_tables", "histograms"): (HISTOGRAMS, True),
    ("reference_tables", "release"): (RELEASE, True),
    ("laplace_strict", "nothing"): (None, False),
    ("weight_regularisation", "nothing"): (None, False),
    ("tables", "nothing"): (None, False),
}
"""By mechanism and reference of a stored job, whether its figures can be wrong."""


@pytest.mark.parametrize("what", FORMER, ids=" on ".join)
def test_packages_and_chains_without_public_records_are_named_up_to_their_last_version(what: tuple[str, str]) -> None:
    """Control: jobs of other mechanisms, of tables on public records, and of the next version."""
    reference, wrong = FORMER[what]
    stored = json.loads(job("modips, law: normal, truncation: bounded", "tables").model_dump_json(exclude_unset=True))
    stored |= {"mechanism": {"name": what[0]}} | ({} if reference is None else {"reference": reference})
    made = Job.stored(json.dumps(stored))
    for protected_by in ("0.1.1", "0.2.0"):
        assert [each.name for each in advisories(made, protected_by)] == ["2026-02"] * wrong
    assert advisories(made, "0.3.0") == []


def test_a_release_of_an_earlier_version_is_verified_with_the_advisory_on_its_figures() -> None:
    public = Path(__file__).parents[1] / "fixtures" / "0.1.1"
    assert "advisory 2026-02: the privacy claim holds, but figures can be wrong" in " ".join(
        verified(public / "tables").output.split()
    )
    assert "advisory" not in verified(public / "records").output, "control"


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, folder = np.random.default_rng(1), tmp_path_factory.mktemp("advised")
    rows = pd.DataFrame({"y": rng.uniform(0.0, 3.0, 200), "weight": rng.uniform(100.0, 200.0, 200)})
    dpdist.run(parse_job(JOB), folder / "ws", rows)
    return folder / "ws" / "public"


def protected_by(public: Path, version: str | None) -> None:
    """Writes another version into promise and statement, and the manifest anew, as a release of that version has them."""
    for name in ("released/promise.json", "statement.json"):
        said = json.loads((public / name).read_text(encoding="utf-8"))
        said = {key: value for key, value in said.items() if key != "protected_by"}
        (public / name).write_text(json.dumps(said | ({} if version is None else {"protected_by": version})))
    manifest = json.loads((public / MANIFEST).read_text(encoding="utf-8"))
    manifest["files"] = {name: sha256(public / name) for name in manifest["files"]}
    (public / MANIFEST).write_bytes(canonical(manifest | {"release": release_id(manifest)}))


def verified(public: Path, *more: str) -> Any:
    return invoke("verify", public, *more)


def test_verify_says_so_of_a_release_of_an_earlier_version_and_its_exit_code_stays_that_of_the_files(public: Path) -> None:
    statement = statement_of(public)
    assert statement["protected_by"] == version("dpdist")
    for earlier in (None, "0.1.0"):
        protected_by(public, earlier)
        done = verified(public)
        assert (done.exit_code, done.output.splitlines()[0]) == (0, f"complete: {public}")
        assert "advisory 2026-01: the claim of this release does not hold if" in " ".join(done.output.split())
        (listed,) = json.loads(verified(public, "--json").output)["advisories"]
        assert (listed["name"], listed["words"]) == ("2026-01", ADVISORIES[0].words)
    protected_by(public, "0.1.1")
    assert "advisory" not in verified(public).output, "control"
    assert json.loads(verified(public, "--json").output)["advisories"] == []


def test_a_changed_file_and_an_advisory_are_both_named(public: Path) -> None:
    protected_by(public, "0.1.0")
    (public / "index.html").write_text("changed")
    done = verified(public)
    assert done.exit_code == 1
    assert "index.html" in done.output
    assert "advisory 2026-01" in done.output


def test_versions_are_compared_by_their_numbers() -> None:
    assert numbers_of("0.9.0") < numbers_of("0.10.0") < numbers_of("1")
    assert numbers_of("") < numbers_of("0.0.1")


def test_a_loss_is_stated_exactly_and_with_its_delta() -> None:
    """A rounded ε may be below the loss, and ε under zCDP holds at its δ alone. Control: 1/3 in four digits is."""
    third = Fraction(1, 3)
    assert Fraction(loss_text(third, None).removeprefix("ε = ")) == third > Fraction(f"{float(third):.4g}")
    assert loss_text(Fraction(5, 2), Fraction(1, 10**6)) == "ε = 2.5 at δ = 0.000001"
