"""Samplers: posterior in, draws out."""

from typing import Any

from dpdist.job import Job
from dpdist.sampling.exact import ExactSampler, GridSampler
from dpdist.sampling.protocol import Sampler


def sampler_of(job: Job) -> Sampler:
    """The sampler that a job names."""
    if job.sampler.name == "grid":
        return GridSampler(job.sampler.draws)
    return ExactSampler(job.sampler.draws)


def facts(job: Job) -> dict[str, Any]:
    """What a statement says of the sampler."""
    said = job.sampler
    return {"name": said.name, "draws": said.draws, "total_variation": 0, "arithmetic": "float64"}


__all__ = ["Sampler", "facts", "sampler_of"]
