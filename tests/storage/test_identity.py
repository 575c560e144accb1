"""What makes two runs' identities differ."""

from __future__ import annotations

from dpdist.storage.workspace import Identity

JOB = {"budget.epsilon": "1", "budget.rho": None, "dataset": "survey"}


def test_what_is_not_stated_differs_from_what_is_stated_as_nothing() -> None:
    """A name that was changed in the file is seen, whatever its value is."""
    other = {"budget.epsilon": "1", "budget.rhp": None, "dataset": "survey"}
    (said,) = Identity(JOB, "a").differences(Identity(other, "a"))
    assert "budget.rho: not stated then, null now" in said
    assert "budget.rhp: null then, not stated now" in said
    assert Identity(JOB, "a").differences(Identity(dict(JOB), "a")) == []
    assert Identity(JOB, "a").differences(Identity(JOB, "b")) == ["input file (its content)"]


def test_the_version_counts_where_noise_is_kept_and_nowhere_else() -> None:
    """The remedy names the version that resumes, if nothing else differs and it is known."""
    for mechanism, counts in (("tables", True), ("weighted", False)):
        job = {**JOB, "mechanism.name": mechanism}
        here, there, unknown = (Identity(job, "a", version) for version in ("0.2.0", "0.1.0", "not stated"))
        assert here.differences(there) == (["version of dpdist (0.1.0 then, 0.2.0 now)"] if counts else [])
        assert bool(here.differences(unknown)) == counts
        assert here.remedy(there, "begin again").startswith("install dpdist 0.1.0") == counts
        assert here.remedy(unknown, "begin again") == "begin again"
        assert here.remedy(Identity(job, "b", "0.1.0"), "begin again") == "begin again"
