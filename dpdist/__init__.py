"""dpdist: synthetic microdata and survey-weighted tables from confidential surveys, with the privacy spent stated."""

from dpdist.cli.report import report
from dpdist.core.errors import DataError, DpdistError, FitError, JobError, StudyError, WorkspaceError
from dpdist.evaluation.calibrate import calibrate
from dpdist.job import Job
from dpdist.job.loading import load_job, parse_job
from dpdist.planning import Plan
from dpdist.release import open_log_lik, plan, publish, run, validate
from dpdist.studies.file import load_study, parse_study
from dpdist.studies.run import run as run_study

__all__ = [
    "DataError",
    "DpdistError",
    "FitError",
    "Job",
    "JobError",
    "Plan",
    "StudyError",
    "WorkspaceError",
    "calibrate",
    "load_job",
    "load_study",
    "open_log_lik",
    "parse_job",
    "parse_study",
    "plan",
    "publish",
    "report",
    "run",
    "run_study",
    "validate",
]
