"""Answers a mechanism's requests until it returns, for `runtime`, `quality`, `studies`; the caller visits records."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.engine.protocol import BlockRecorder, Carry, Choice, Columns, FigureQuery, Noise, Pass, Query, Sample
from dpdist.models.protocol import Clamped, Draws, StratumModel
from dpdist.privacy.noise import simulated_noise
from dpdist.sampling.samplers import ExactSampler, PosteriorSampler

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
    drawn = set[int]()
    repeated = dict[str, tuple[StratumModel, Callable[[Floats | Clamped], Draws]]]()

    def draws_of(request: Sample) -> Draws:
        asked, posterior = request.model or model, request.posterior

        def stream() -> np.random.Generator:
            return key.generator(request.stage, stratum, set=request.set)

        if request.set or not isinstance(sampler, ExactSampler):
            return (sampler.one if request.set else sampler.many)(asked, posterior, stream())
        if request.stage not in repeated or repeated[request.stage][0] is not asked:
            repeated[request.stage] = asked, sampler.repeated(asked, stream)
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
                "figures to be released under noise are not whole numbers: round each record's share, because noise is "
                "whole, and fractions would be released as they are"
            )
        elif request.noise.set in drawn:
            raise ValueError(f"noise number {request.noise.set} is asked for by two queries: give each a number of its own")
        else:
            drawn.add(request.noise.set)
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


class Unrecorded:
    """Keeps no by-products of a block."""

    wants_log_lik = False

    def bounds(self, columns: Confidential[Columns]) -> None:
        return None

    def log_lik(self, values: Confidential[Floats]) -> None:
        return None


class Unwatched:
    """Keeps no by-products of a stratum."""

    def posterior(self, fit: str, draws: object) -> None:
        return None

    def summary(self, values: object) -> None:
        return None


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
    by_block = [Unrecorded()] * len(blocks) if recorders is None else recorders

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
