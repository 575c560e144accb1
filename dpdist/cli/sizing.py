"""Computes memory and number of a cluster's workers from a job's plan, as a patch for the manifests in deploy/."""

from __future__ import annotations

from math import ceil
from typing import Any

from dpdist.planning.blocks import BYTES_PER_RECORD, log_lik_bytes
from dpdist.planning.plan import Plan

NANNY_BYTES = 256 * 2**20
"""Memory in bytes of the process that watches a worker and restarts it."""
HEADROOM = 1.25
"""Factor by which a worker has more memory than its largest task; at 95 % of its container's memory it is ended."""
STEP = 256 * 2**20
LEAST_WORKSPACE = 10 * 2**30
SHIPPED_WORKSPACE = 50 * 2**30
"""Bytes of the volume claim in deploy/common/storage.yaml."""


def worker_memory(plan: Plan) -> int:
    """Returns the bytes of a worker's container: the largest task with headroom, and the process that watches the worker.

    If the job keeps sizes confidential, the job's limit for a worker is used in place of the largest task.
    """
    allowed = int(plan.job.runtime.memory_per_worker)
    needed = allowed if plan.job.sizes_secret else plan.layout.largest_task_bytes * HEADROOM
    return ceil((needed + NANNY_BYTES) / STEP) * STEP


def workers_of(plan: Plan, most: int) -> int:
    """Returns the number of workers that get a task; it is `most` if the number of tasks is confidential."""
    return most if plan.job.sizes_secret else min(most, tasks(plan, most))


def workspace_bytes(plan: Plan) -> int:
    """Returns the bytes of a workspace, which has tensors and draws once, and the records twice.

    If sizes are confidential, it is the size of the shipped claim.
    """
    if plan.job.sizes_secret:
        return SHIPPED_WORKSPACE
    frame, layout = plan.frame, plan.layout
    tensors = log_lik_bytes(frame, layout.draws) if layout.log_lik else 0
    draws = 8 * layout.draws * (layout.parameters + 1) * len(frame.stratum_labels)
    needed = HEADROOM * (tensors + draws + 2 * BYTES_PER_RECORD * int(frame.count.sum()))
    return max(LEAST_WORKSPACE, ceil(needed / 2**30) * 2**30)


def tasks(plan: Plan, workers: int) -> int:
    """Returns the number of tasks that can run at once: bins of small strata, and record spans of the largest stratum."""
    layout = plan.layout
    return max(1, len(layout.bins(workers)) + max((len(layout.spans(k)) for k in layout.giants), default=0))


def worker_patch(plan: Plan, workers: int) -> dict[str, Any]:
    """Returns a strategic merge patch for the Deployment of the workers."""
    memory = f"{worker_memory(plan) // 2**20}Mi"
    resources = {"requests": {"cpu": "1", "memory": memory}, "limits": {"cpu": "1", "memory": memory}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "dpdist-worker", "namespace": "dpdist"},
        "spec": {
            "replicas": workers_of(plan, workers),
            "template": {"spec": {"containers": [{"name": "worker", "resources": resources}]}},
        },
    }
