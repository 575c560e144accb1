"""Sizes the workers of a cluster for a job: writes a patch for the manifests in deploy/, from the job's plan."""

from __future__ import annotations

from math import ceil
from typing import Any

from dpdist.runtime.blocks import BYTES_PER_RECORD, log_lik_bytes
from dpdist.runtime.plan import Plan

NANNY_BYTES = 256 * 2**20
"""Memory of the process that watches a worker and restarts it."""
HEADROOM = 1.25
"""A worker is ended at 95 % of the container's memory, so its projected memory stays well below that."""
STEP = 256 * 2**20
LEAST_WORKSPACE = 10 * 2**30
SHIPPED_WORKSPACE = 50 * 2**30
"""The size of the claim in deploy/common/storage.yaml."""


def worker_memory(plan: Plan) -> int:
    """Returns the memory of a worker's container: the largest task, headroom, and the watching process.

    Where the job keeps sizes confidential, the job's limit for a worker is used in place of the largest task.
    """
    allowed = int(plan.job.runtime.memory_per_worker)
    needed = allowed if plan.job.sizes_secret else plan.layout.largest_task_bytes * HEADROOM
    return ceil((needed + NANNY_BYTES) / STEP) * STEP


def workers_of(plan: Plan, most: int) -> int:
    """Returns the number of workers that have a task. It is `most` where the number of tasks is confidential."""
    return most if plan.job.sizes_secret else min(most, tasks(plan, most))


def workspace_bytes(plan: Plan) -> int:
    """Returns the bytes of a workspace: tensors and draws once, the records twice.

    Where sizes are confidential, it is the shipped size.
    """
    if plan.job.sizes_secret:
        return SHIPPED_WORKSPACE
    frame, layout = plan.frame, plan.layout
    tensors = log_lik_bytes(frame, layout.draws) if layout.log_lik else 0
    draws = 8 * layout.draws * (layout.parameters + 1) * len(frame.stratum_labels)
    needed = HEADROOM * (tensors + draws + 2 * BYTES_PER_RECORD * int(frame.count.sum()))
    return max(LEAST_WORKSPACE, ceil(needed / 2**30) * 2**30)


def tasks(plan: Plan, workers: int) -> int:
    """Returns the number of tasks that can run at once: bins of small strata, and the spans of the largest stratum."""
    layout = plan.layout
    return max(1, len(layout.bins(workers)) + max((len(layout.spans(k)) for k in layout.giants), default=0))


def worker_patch(plan: Plan, workers: int) -> dict[str, Any]:
    """Returns a strategic merge patch of the worker Deployment."""
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
