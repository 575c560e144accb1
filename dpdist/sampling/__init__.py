"""Samplers: posterior in, draws out."""

from dpdist.job import Job
from dpdist.sampling.exact import ExactSampler, GridSampler
from dpdist.sampling.protocol import Sampler


def sampler_of(job: Job) -> Sampler:
    """The sampler that a job names."""
    if job.sampler.name == "grid":
        return GridSampler(job.sampler.draws)
    return ExactSampler(job.sampler.draws)


__all__ = ["Sampler", "sampler_of"]
