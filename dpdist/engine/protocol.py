"""The interface between mechanisms and the engine: a generator yields requests, and receives only totals over records.

    total = yield Pass(kernel, combine)      # run the kernel on every block of records; combine results in block order
    draws = yield Sample(posterior, …)       # draw from a posterior: statistics of weighted records, or clamped records
    noisy = yield Measurement(sums, noise)   # sums plus noise
    best = yield Choice(scores, noise)       # the position of the largest score under noise

The last two are queries. The engine draws their noise and applies it, and the mechanism gets the answer alone.

A kernel runs where the records are stored. Per-record values of a kernel, such as F and α, are the block's *carry*, and
stay with the records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.keys import Key
from dpdist.core.records import Floats, Ints
from dpdist.job import Job, NoiseName
from dpdist.models.protocol import Clamped, Draws, StratumModel
from dpdist.privacy.guarantees import NoisyQuery, Promise
from dpdist.privacy.noise import simulated_noise
from dpdist.sampling.samplers import PosteriorSampler

Learned = Any
"""What a mechanism learned from a reference about a stratum, before the current file was read.

Each mechanism has its own type for it. It is None without a reference.
"""


Carry = dict[str, Floats]
Columns = dict[str, Floats | Ints]
"""By-products for every record, by name, (record,) each."""


class Kernel(Protocol):
    """Runs on one block: reads records and carry, may write to the carry and the recorder, and returns a partial result."""

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats: ...


class Pass(NamedTuple):
    kernel: Kernel
    combine: Literal["sum", "max", "concat"]


class Sample(NamedTuple):
    """Request for posterior draws.

    Set 0 asks for the S draws over which bounds are taken. Set k ≥ 1 asks for one separate draw, for synthetic set k.
    """

    posterior: Floats | Clamped
    stage: str
    set: int = 0
    model: StratumModel | None = None
    """The model to draw from; None for the stratum's model. A mechanism may make another model from its reference."""


class Noise(NamedTuple):
    """Request for discrete noise, (size,), with number `set` in its stratum.

    `scale` is b of the Laplace law, or σ of the Gaussian law. Noise is drawn once and stored before use. Stored noise
    is never used for other sums: two sums under the same noise would reveal their exact difference.
    """

    scale: Fraction
    size: int
    set: int
    law: NoiseName = "laplace"
    query: str = ""
    """Checksum of what is summed, such as limits, units and bins."""
    sums: str = ""
    """Checksum of the exact sums. It is confidential, because the sums are."""


class Query(Protocol):
    """Request for an answer under noise. The engine draws the noise and gives the mechanism `under(noise)`."""

    @property
    def noise(self) -> Noise: ...

    @property
    def stated(self) -> NoisyQuery | None: ...

    def under(self, noise: Floats) -> Any: ...


@runtime_checkable
class FigureQuery(Query, Protocol):
    """Query with one noisy figure for every sum, drawn from the law of sum plus noise within a range."""

    @property
    def sums(self) -> Floats: ...

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """Public ends of every figure's range, in the shape of the sums; infinite if noise is only added."""
        ...


class Measurement(NamedTuple):
    """Request for sums plus noise, in the shape of the sums."""

    sums: Floats
    """Whole numbers; confidential."""
    noise: Noise
    """One for every sum."""
    stated: NoisyQuery | None = None
    """The stated loss; the query's noise has this law and scale."""

    def under(self, noise: Floats) -> Floats:
        return np.asarray(self.sums + noise.reshape(self.sums.shape))

    @property
    def ends(self) -> tuple[Floats, Floats]:
        return np.full(self.sums.shape, -np.inf), np.full(self.sums.shape, np.inf)


class Choice(NamedTuple):
    """Request for the candidate with the largest noisy score in every row, (row,); the first of equal ones.

    Scores and noise are not returned to the mechanism.
    """

    scores: Floats
    """(row, candidate), whole numbers; confidential."""
    noise: Noise
    """The noise, one value for every score."""
    stated: NoisyQuery | None = None
    """The stated loss; the query's noise has this law and scale."""

    def under(self, noise: Floats) -> Ints:
        """Returns the chosen candidates, (…, row), under this noise, (…, score)."""
        return np.asarray((self.scores + noise.reshape(*noise.shape[:-1], *self.scores.shape)).argmax(axis=-1))


Rounds = Generator[Pass | Sample | Query, Any, "Released"]


class Released(NamedTuple):
    """What a mechanism releases about a stratum: the parameters θ of every synthetic set, and nothing else."""

    parameters: tuple[Draws, ...]


class BlockRecorder:
    """Receives a block's confidential by-products. Mechanisms do not know where they are stored; this class keeps none."""

    @property
    def wants_log_lik(self) -> bool:
        return False

    def bounds(self, columns: Confidential[Columns]) -> None:
        """Records the columns of the block's records."""

    def log_lik(self, values: Confidential[Floats]) -> None:
        """Records the block's log likelihood, (draw, record)."""


class StratumRecorder:
    """Receives a stratum's confidential by-products. This class keeps none."""

    def posterior(self, fit: str, draws: Confidential[Draws]) -> None:
        """Records the draws of a fit, by its name."""

    def summary(self, values: Confidential[dict[str, Any]]) -> None:
        """Records database_bound (Δ), epsilon_local (2Δ, zero_out), epsilon_local_range and diagnostics."""


class Mechanism(ABC):
    """A mechanism, which states a promise and protects a stratum.

    `promise` needs the job alone, and is called before data are read. `protect` returns the generator of requests;
    `learned` is what the mechanism learned from the reference.
    """

    scope: Literal["stratum", "file"] = "stratum"

    @abstractmethod
    def promise(self, job: Job) -> Promise: ...

    def listed(self, job: Job) -> tuple[NoisyQuery, ...] | None:
        """The queries under noise from which the promise is computed; None if it draws from a posterior."""
        return None

    @abstractmethod
    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Any = None) -> Rounds: ...


T = TypeVar("T")

_COMBINE = {"sum": np.add, "max": np.maximum}


def drive(
    rounds: Generator[Pass | Sample | Query, Any, T],
    model: StratumModel,
    sampler: PosteriorSampler,
    key: Key,
    stratum: str,
    visit: Callable[[Pass], Floats],
    noise: Callable[[Noise], Floats],
    answer: Callable[[Query], Any] | None = None,
) -> T:
    """Runs the generator to its end. `visit` gives the total of a pass, `noise` gives noise.

    Posterior draws come from streams of random numbers with keys. Draws of the same (stage, set) use the same stream in
    every round. Queries are answered under the noise, or by `answer` if it is given. Raises `ValueError` if exact
    figures are not whole, or if two queries use one noise number and would share stored noise.
    """
    reply: object = None
    sets_with_noise = set[int]()
    repeated = dict[str, tuple[StratumModel, Callable[[Floats | Clamped], Draws]]]()

    def draws_of(request: Sample) -> Draws:
        target_model, posterior = request.model or model, request.posterior

        def stream() -> np.random.Generator:
            return key.generator(request.stage, stratum, set=request.set)

        if request.set:
            return sampler.draw(target_model, posterior, stream())
        if request.stage not in repeated or repeated[request.stage][0] is not target_model:
            repeated[request.stage] = target_model, sampler.repeated(target_model, stream)
        return repeated[request.stage][1](posterior)

    while True:
        try:
            request = rounds.send(reply)
        except StopIteration as end:
            value: T = end.value
            return value
        if isinstance(request, Pass):
            reply = visit(request)
        elif isinstance(request, Sample):
            reply = draws_of(request)
        elif isinstance(request, FigureQuery | Choice) and not _whole(request):
            raise ValueError(
                "figures to be released with noise are not whole numbers: round each record's share, because the noise is "
                "a whole number and fractions would be released unchanged"
            )
        elif request.noise.set in sets_with_noise:
            raise ValueError(
                f"two queries ask for the noise number {request.noise.set}: give each query a different number"
            )
        else:
            sets_with_noise.add(request.noise.set)
            reply = request.under(noise(request.noise)) if answer is None else answer(request)


def _whole(request: FigureQuery | Choice) -> bool:
    exact = request.scores if isinstance(request, Choice) else request.sums
    return bool((exact == np.rint(exact)).all())


def visit_blocks(
    request: Pass, blocks: Sequence[Records], carries: Sequence[Carry], recorders: Sequence[BlockRecorder]
) -> Floats:
    """Runs a pass over blocks in memory; partial results are combined in block order."""
    visited = zip(blocks, carries, recorders, strict=True)
    return combine(request, (request.kernel(records, carry, recorder) for records, carry, recorder in visited))


def combine(request: Pass, partials: Iterable[Floats]) -> Floats:
    """Combines the partial results of a pass, in block order. Sums and maxima keep no more than three of them at a time."""
    if request.combine == "concat":
        return np.concatenate(list(partials))
    return reduce(_COMBINE[request.combine], partials)


def run_rounds(
    rounds: Generator[Pass | Sample | Query, Any, T],
    model: StratumModel,
    sampler: PosteriorSampler,
    key: Key,
    stratum: str,
    blocks: Sequence[Records],
    recorders: Sequence[BlockRecorder] | None = None,
    noise: Callable[[Noise], Floats] | None = None,
    answer: Callable[[Query], Any] | None = None,
) -> T:
    """Runs a mechanism's rounds over blocks in memory, and returns their result.

    Each block's carry, its per-record values, stays with the block between rounds. `recorders` has one entry for each
    block; without it no by-products are stored. `noise` gives noise to the mechanism. Without it, fresh noise is drawn
    and not stored, for runs that are neither resumed nor released. Queries are answered under the noise, or by `answer`
    if it is given.
    """
    carries: list[Carry] = [{} for _ in blocks]
    by_block = [BlockRecorder()] * len(blocks) if recorders is None else recorders

    def visit(request: Pass) -> Floats:
        return visit_blocks(request, blocks, carries, by_block)

    return drive(rounds, model, sampler, key, stratum, visit, noise or fresh_noise, answer)


def fresh_noise(request: Noise) -> Floats:
    """Draws fresh noise of the requested law and scale with OpenDP."""
    from dpdist.privacy.noise import whole_gaussian, whole_laplace

    return (whole_gaussian if request.law == "gaussian" else whole_laplace)(request.scale, request.size)


def noise_of(key: Key) -> Callable[[Noise], Floats]:
    """Returns a function that draws the requested noise from a key, never for a release.

    Noise of a release must not be reproducible.
    """

    def noise(request: Noise) -> Floats:
        return simulated_noise(request.law, request.scale, request.size, key.generator("noise", set=request.set))

    return noise
