"""dpdist: synthetic microdata and survey-weighted tables from confidential surveys, with the privacy spent stated."""

from dpdist.errors import DataError, DpdistError, FitError, JobError, WorkspaceError
from dpdist.job import Job
from dpdist.jobfile import load_job, parse_job
from dpdist.planning import Plan
from dpdist.release import open_log_lik, plan, publish, run, validate
from dpdist.reporting import report

__all__ = [
    "DataError",
    "DpdistError",
    "FitError",
    "Job",
    "JobError",
    "Plan",
    "WorkspaceError",
    "load_job",
    "open_log_lik",
    "parse_job",
    "plan",
    "publish",
    "report",
    "run",
    "validate",
]
