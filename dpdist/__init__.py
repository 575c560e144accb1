"""The public functions of dpdist, such as `protect`: they run releases, and open, compare and report them.

A public name is imported at its first use, so a process loads only the parts that it uses.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpdist.cli.report import report
    from dpdist.core.errors import (
        AnalysisError,
        BudgetRefused,
        DataError,
        DpdistError,
        FitError,
        JobError,
        NotAccepted,
        StudyError,
        WorkspaceError,
    )
    from dpdist.job import Job
    from dpdist.job.loading import load_job, parse_job
    from dpdist.opening.results import open_evaluation, open_log_lik, open_posterior, open_release
    from dpdist.planning.plan import Plan
    from dpdist.publish.differences import period_differences
    from dpdist.publish.opened import Release
    from dpdist.publish.series import series_of as series
    from dpdist.quality.calibrate import calibrate
    from dpdist.release import plan, publish, run, validate
    from dpdist.studies.kinds import load_study, parse_study
    from dpdist.studies.run import run as run_study

__all__ = [
    "AnalysisError",
    "BudgetRefused",
    "DataError",
    "DpdistError",
    "FitError",
    "Job",
    "JobError",
    "NotAccepted",
    "Plan",
    "Release",
    "StudyError",
    "WorkspaceError",
    "calibrate",
    "load_job",
    "load_study",
    "open_evaluation",
    "open_log_lik",
    "open_posterior",
    "open_release",
    "parse_job",
    "parse_study",
    "period_differences",
    "plan",
    "publish",
    "report",
    "run",
    "run_study",
    "series",
    "validate",
]

_PLACES = {
    "Job": "job:Job",
    "Plan": "planning.plan:Plan",
    "Release": "publish.opened:Release",
    "calibrate": "quality.calibrate:calibrate",
    "load_job": "job.loading:load_job",
    "load_study": "studies.kinds:load_study",
    "open_evaluation": "opening.results:open_evaluation",
    "open_log_lik": "opening.results:open_log_lik",
    "open_posterior": "opening.results:open_posterior",
    "open_release": "opening.results:open_release",
    "parse_job": "job.loading:parse_job",
    "parse_study": "studies.kinds:parse_study",
    "period_differences": "publish.differences:period_differences",
    "plan": "release:plan",
    "report": "cli.report:report",
    "run": "release:run",
    "run_study": "studies.run:run",
    "series": "publish.series:series_of",
    "validate": "release:validate",
}
"""Module and attribute of each public name. Names that are missing here are classes of errors, in `core.errors`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dpdist' has no attribute {name!r}")
    place, _, there = _PLACES.get(name, f"core.errors:{name}").partition(":")
    return getattr(import_module(f"dpdist.{place}"), there)


def __dir__() -> list[str]:
    """Lists public names only."""
    return __all__


class _Package(ModuleType):
    """The package as a module object, so that `dpdist.publish` is the function and not the folder of that name.

    Modules in that folder are imported by their full names.
    """

    @property
    def publish(self) -> Any:
        return import_module("dpdist.release").publish

    @publish.setter
    def publish(self, folder: ModuleType) -> None:
        """Ignores the value that an import of the folder `dpdist.publish` sets."""


sys.modules[__name__].__class__ = _Package
