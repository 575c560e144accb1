"""dpdist: synthetic microdata and survey-weighted tables from confidential surveys, with the privacy spent stated."""

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
from dpdist.evaluation.calibrate import calibrate
from dpdist.evaluation.opening import open_evaluation, open_log_lik, open_posterior, open_release
from dpdist.job import Job
from dpdist.job.loading import load_job, parse_job
from dpdist.publish.opened import Release
from dpdist.publish.period_differences import period_differences
from dpdist.release import plan, publish, run, validate
from dpdist.runtime.plan import Plan
from dpdist.studies.file import load_study, parse_study
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
    "validate",
]


def __dir__() -> list[str]:
    """Public names alone."""
    return __all__
