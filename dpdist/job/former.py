"""For `job.loading` and `job.specs`: mechanisms of dpdist 0.2, as other names of `tables`, and in jobs of earlier releases.

A job file may use three of the names for one more version: it then runs as `tables`. Jobs of earlier releases keep their
mechanism as they state it, so that their folders are opened and verified.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict

from dpdist.core.cautions import Caution
from dpdist.core.errors import JobError, Problem
from dpdist.job.budget import FRAME_MINIMUM
from dpdist.job.contradiction import JobView
from dpdist.job.mechanism import Noisy
from dpdist.job.values import Guarantee
from dpdist.job.yaml_lines import Keys, Lines, place

PRESENT = "tables"
ALIASES = ("table_package", "reference_tables", "laplace_strict")
"""Former names that a job file may use."""
REMOVED = "weight_regularisation"
NAMES = (*ALIASES, REMOVED)
STATISTICS = ("reference_cells", "package", "cell_sums", "regularised_cells")
"""Names of their statistics, which earliest jobs state as `model.family`."""
NO_MORE = "'{}' is no mechanism since dpdist 0.3"
DROPPED = {
    ("mechanism", "strategy"): "what is published is measured",
    ("mechanism", "shrinkage"): "the posterior shrinks as far as noise asks",
    ("reference", "histogram"): "drift since an earlier release is measured by the tables themselves",
}
"""Keys that the former mechanisms had, and why `tables` has none; `reference.histogram` beside `reference.release`."""
WITHOUT = "; {key} has no effect, for {why}"
AGAIN = "install dpdist 0.2, which publishes it: pip install 'dpdist>=0.2,<0.3'"
"""Remedy for a release of such a mechanism that is to be published again."""


class Former(Noisy):
    """A mechanism of dpdist 0.2 in the job of an earlier release, with all of its settings; nothing runs under it."""

    model_config = ConfigDict(extra="allow")

    tabulates: ClassVar[bool] = True
    statistics: ClassVar[str | None] = "sums of cells"
    several_outcomes: ClassVar[bool] = True
    gates: ClassVar[bool] = True

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    @staticmethod
    def first_of(name: str) -> tuple[int, ...]:
        """The first version that had the mechanism."""
        return (0, 2) if name == "table_package" else (0, 1)

    @property
    def gaussian(self) -> bool:
        return bool((self.model_extra or {}).get("noise") == "gaussian")

    def biased(self, on_records: bool) -> bool:
        """True if means can be far off at every ε: of packages, and of tables whose reference is no file of records."""
        return self.name == "table_package" or (self.name == "reference_tables" and not on_records)


def in_present_form(keys: Keys, lines: Lines, source: str) -> tuple[Keys, Caution | None]:
    """A job's keys with the present name of its mechanism, and a caution on a former one.

    Raises `JobError` for a mechanism that is no more.
    """
    mechanism = keys.get("mechanism")
    name = mechanism.get("name") if isinstance(mechanism, dict) else None
    if name == REMOVED:
        where = ("mechanism", "name")
        fault = NO_MORE.format(REMOVED)
        raise JobError(
            source,
            [
                Problem(
                    "mechanism.name",
                    fault,
                    f"{PRESENT}, or another mechanism",
                    f"take {PRESENT}",
                    places=place(where, lines),
                )
            ],
        )
    if name not in ALIASES:
        return keys, None
    present: dict[str, Any] = keys | {"mechanism": {**keys["mechanism"], "name": PRESENT}}
    dropped = ""
    budget = present.get("budget")
    public = not isinstance(budget, dict) or budget.get("adjacency") != "add_remove"
    if name != "table_package" and public and not {"frame_minimum", "public_frame"}.intersection(present):
        # These refused small counts that a package of tables published.
        present["frame_minimum"] = FRAME_MINIMUM
    for (section, key), why in DROPPED.items():
        stated = present.get(section)
        if isinstance(stated, dict) and key in stated and (section != "reference" or "release" in stated):
            present[section] = {other: value for other, value in stated.items() if other != key}
            dropped += WITHOUT.format(key=f"{section}.{key}", why=why)
    return present, Caution.of("former_mechanism", former=name, present=PRESENT, dropped=dropped)
