"""Checks a job against its data before a run, and lists its cautions; nothing is spent or written."""

from __future__ import annotations

from dpdist.approval.acceptance import cautions as of_gates
from dpdist.approval.acceptance import refuse_unreachable
from dpdist.core.cautions import Caution
from dpdist.core.progress import Listener, silent, without_sizes
from dpdist.job import Job
from dpdist.job.loading import JobLike, job_of
from dpdist.planning.making import make_plan
from dpdist.planning.plan import Plan
from dpdist.quality.cautions import cautions as of_plan
from dpdist.quality.predicted.prediction import ErrorPrediction
from dpdist.survey.source import Input


def validate(job: JobLike, input: Input = None, listener: Listener = silent) -> Plan:
    """Checks the job against the data; spends and writes nothing.

    Parameters
    ----------
    job : a `Job`, a mapping as a job file has it, YAML text, or the path or name of a job file.
    input : the confidential records in place of the job's own: a file, a pandas data frame or an Arrow table.
    listener : is called with progress events.

    Returns
    -------
    The plan of a run. It is confidential, except for what it prints.

    Raises
    ------
    JobError, DataError : every problem with its place, what is allowed, and the remedy.

    Example
    -------
    >>> dpdist.validate("small.yaml").job.dataset
    'doctorates'
    """
    frozen = job_of(job)
    found_plan = make_plan(frozen, input, guarded(frozen, listener))
    refuse_unreachable(frozen, found_plan.crosstab)
    return found_plan


def plan(job: JobLike, input: Input = None, listener: Listener = silent) -> Plan:
    """Says what a run would do and cost, after all checks; spends and writes nothing.

    Parameters
    ----------
    job, input, listener : as of `validate`.

    Returns
    -------
    The plan, which prints in ten lines or fewer.

    Raises
    ------
    JobError, DataError : every problem with its place, what is allowed, and the remedy.

    Example
    -------
    >>> len(str(dpdist.plan("small.yaml")).splitlines()) <= 10
    True
    """
    return validate(job, input, listener)


def cautions(plan: Plan, prediction: ErrorPrediction | None = None, workspace: str = "WORKSPACE") -> list[Caution]:
    """Every caution of a plan, which `validate`, `plan` and `run` show alike. None refuses a job.

    Without a prediction, alarms are those of an earlier one. `workspace` is what remedies call the run's folder.
    """
    return [*of_gates(plan.job), *of_plan(plan, prediction, workspace)]


def guarded(job: Job, listener: Listener) -> Listener:
    """Wraps the listener so that progress shows no size that the job keeps secret. The listener may be a user's."""
    return without_sizes(listener) if job.sizes_secret else listener
