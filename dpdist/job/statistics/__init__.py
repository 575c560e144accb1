"""Statistics of tables by name: dpdist's, and plug-ins of other distributions."""

from __future__ import annotations

from inspect import isabstract
from typing import Any

from dpdist.core.plugins import STATISTICS, Members
from dpdist.job.statistics.kind import CONSTANTS, RESERVED, Kind

PLACES = {
    "count": "dpdist.job.statistics.figures:Count",
    "difference": "dpdist.job.statistics.figures:CellDifference",
    "mean": "dpdist.job.statistics.figures:Mean",
    "proportion": "dpdist.job.statistics.figures:Proportion",
    "quantile": "dpdist.job.statistics.figures:Quantile",
    "median": "dpdist.job.statistics.figures:Median",
    "ratio": "dpdist.job.statistics.figures:Ratio",
    "share": "dpdist.job.statistics.figures:Share",
    "total": "dpdist.job.statistics.figures:Total",
}
"""Places of dpdist's statistics by name. Those of plug-ins are entry points."""


def _fault(name: str, member: Any) -> str:
    if not (isinstance(member, type) and issubclass(member, Kind)):
        return "is not a class derived from Kind of dpdist.job.statistics.kind"
    if getattr(member, "name", None) != name or not isinstance(getattr(member, "written", None), str):
        return f"has a different name in its class, or no text on how a job writes it: write name = '{name}' and written"
    if name in RESERVED:
        return "has the name of a key of statistics: rename it"
    if isabstract(member):
        return "has no sums: write sums(constants, cells) in its class"
    if unknown := sorted((member.needs | member.takes) - CONSTANTS):
        return f"needs or takes {', '.join(unknown)}: a statistic has constants among {', '.join(sorted(CONSTANTS))}"
    if member.plain and name not in KINDS:
        return "is `plain`, which only a count, a mean and a total are: leave plain out"
    return ""


KINDS: Members[type[Kind]] = Members(STATISTICS, PLACES, _fault)
"""Classes of statistics by the name that a job writes."""
