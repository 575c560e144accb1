"""What makes two runs' identities differ."""

from __future__ import annotations

from dpdist.storage.identity import Identity

JOB = {"budget.epsilon": "1", "budget.rho": None, "dataset": "survey"}


def test_what_is_not_stated_differs_from_what_is_stated_as_nothing() -> None:
    """A name that was changed in the file is seen, whatever its value is."""
    other = {"budget.epsilon": "1", "budget.rhp": None, "dataset": "survey"}
    (said,) = Identity(JOB, "a").differences(Identity(other, "a"))
    assert "budget.rho: not stated there, None here" in said
    assert "budget.rhp: None there, not stated here" in said
    assert Identity(JOB, "a").differences(Identity(dict(JOB), "a")) == []
    assert Identity(JOB, "a").differences(Identity(JOB, "b")) == ["input (its content)"]
