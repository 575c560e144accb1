"""The sampler of a job: `exact`, `grid`, or `stan` by Markov chains."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dpdist.core.errors import ProgramError
from dpdist.core.progress import Listener
from dpdist.core.records import Floats
from dpdist.job import Job, NoiseName
from dpdist.models.numerics.grid import FEW_RECORDS_ERROR, GRID_ERROR
from dpdist.models.protocol import Clamped, Draws, StratumModel, supports
from dpdist.models.user import CLAMPED_FACTOR, User
from dpdist.sampling.markov import StanSampler, source_of
from dpdist.sampling.samplers import VARIATION, IndependentSampler, PosteriorSampler, Unconverged
from dpdist.sampling.toolchain import check_program, executable, find_toolchain

CAVEAT = (
    "Draws come from Markov chains, whose total variation distance γ from the posterior is unknown. A draw is therefore "
    "(ε, (1 + e^ε)γ)-private at best."
)
GRID_CAVEAT = (
    "Draws come from an interpolant on a grid that follows the posterior. With five records or more, their total variation "
    f"distance from the posterior is at most the γ stated above; with fewer it is at most {FEW_RECORDS_ERROR:g}. A draw "
    "is therefore (ε, (1 + e^ε)γ)-private at best."
)
NOISE_LAWS: dict[NoiseName, str] = {"laplace": "discrete Laplace", "gaussian": "discrete Gaussian"}
RETRIES = (
    "A fit whose Stan run fails{} is repeated with another seed, with at most {} attempts in all. This number was fixed "
    "before the run. The release is conditional on a successful attempt."
)


def sampler_of(job: Job, folder: Path) -> PosteriorSampler:
    """The sampler that a job names. Private folders for runs of Stan are made in `folder`."""
    if job.sampler.name == "stan":
        return StanSampler(job.sampler, job.diagnostics, folder)
    return IndependentSampler(job.sampler.draws)


@dataclass(frozen=True)
class ReferenceSampler(PosteriorSampler):
    """Samples posteriors of a public file: by closed form, or on a grid, where the model allows it.

    For a clamped posterior it uses the job's sampler.
    """

    draws: int
    for_clamped: PosteriorSampler

    def sample(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        return self._of(model, posterior).sample(model, posterior, rng)

    def draw(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        return self._of(model, posterior).draw(model, posterior, rng)

    def _of(self, model: StratumModel, posterior: Floats | Clamped) -> PosteriorSampler:
        independent = supports(model, "draw") or supports(model, "draw_on_grid")
        return IndependentSampler(self.draws) if independent and not isinstance(posterior, Clamped) else self.for_clamped


def check(job: Job, model: StratumModel) -> None:
    """Checks that the sampler's tools are installed, and that they accept the model's program.

    Raises `ToolchainError` or `ProgramError`.
    """
    if job.sampler.name != "stan":
        return
    declared = check_program(source_of(model.program), job.sampler.toolchain)
    if not isinstance(model, User):
        return
    dimensions = {name: len(dims) for name, dims in job.likelihood.parameters.items()}
    if declared["parameters"] != dimensions:
        listed = ", ".join(f"{name} ({dims} dimensions)" for name, dims in declared["parameters"].items()) or "none"
        remedy = f"list under model.parameters exactly those of its parameters block: {listed}"
        raise ProgramError(model.program.name, "its parameters are not those of the job", remedy)
    for name in (("y_rep", "w_rep") if model.weighted else ("y_rep",)) + (() if model.function else ("log_lik",)):
        if declared["generated quantities"].get(name) != 1:
            raise ProgramError(model.program.name, f"it generates no vector {name}", f"declare vector[N] {name}")
    if "alpha" not in declared["inputs"]:
        raise ProgramError(
            model.program.name, "it does not use privacy weights", "declare vector<lower=0>[N] alpha as data"
        )
    if job.mechanism.clamps and (missing := {"reference", "clamp"} - set(declared["inputs"])):
        found_ = f"'{job.mechanism}' clamps a record's factor; the program takes no {' or '.join(sorted(missing))}"
        remedy = "declare vector[N] reference and real<lower=0> clamp as data, and weigh a record by " + CLAMPED_FACTOR
        raise ProgramError(model.program.name, found_, f"{remedy}; or use the mechanism weighted")
    if unknown := sorted(set(declared["inputs"]) - model.inputs):
        found_ = f"it declares data that have no source: {', '.join(unknown)}"
        raise ProgramError(model.program.name, found_, "add them to model.data")
    model.check_function()


def prepare(job: Job, model: StratumModel, listener: Listener) -> None:
    """Compiles the model's Stan program, if it has one that is not compiled yet."""
    if job.sampler.name == "stan":
        executable(source_of(model.program), job.sampler.toolchain, listener)


def facts(job: Job) -> dict[str, Any]:
    """Facts on the sampler, or on the noise, for the statement."""
    if job.mechanism.adds_noise:
        noise = f"OpenDP's {NOISE_LAWS['gaussian' if job.mechanism.gaussian else 'laplace']}, drawn once and stored"
        return {"name": None, "noise": noise, "noise_library": f"OpenDP {version('opendp')}", "total_variation": 0}
    entries: dict[str, Any] = {"name": job.sampler.name, "draws": job.sampler.draws, "arithmetic": "float64"}
    if job.sampler.name == "exact":
        return entries | {"total_variation": 0}
    if job.sampler.name == "grid" and job.mechanism.clamps:
        by_rejection = (
            f"restricted to a public box of parameters; drawn by rejection; total variation at most {VARIATION:g} in tests"
        )
        return entries | {"total_variation": None, "posterior": by_rejection}
    if job.sampler.name == "grid":
        return entries | {"total_variation": GRID_ERROR, "caveats": [GRID_CAVEAT]}
    tools, policy = find_toolchain(job.sampler.toolchain), job.diagnostics
    failing = " or misses the job's diagnostics" if policy.policy == "fail" else ""
    return entries | {
        "chains": job.sampler.chains,
        "warmup": job.sampler.warmup,
        "adapt_delta": job.sampler.adapt_delta,
        "toolchain": tools.name,
        "stan_version": tools.version,
        "diagnostics": policy.model_dump(mode="json"),
        "total_variation": None,
        "caveats": [CAVEAT, RETRIES.format(failing, job.sampler.attempts)],
    }


__all__ = [
    "PosteriorSampler",
    "ReferenceSampler",
    "Unconverged",
    "check",
    "facts",
    "prepare",
    "sampler_of",
]
