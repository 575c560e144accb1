"""Runs a mechanism's rounds over blocks of records in memory.

Used for small strata of a release, references, calibrations, audits and studies.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.engine.protocol import BlockRecorder, Carry, Columns, Noise, Pass, Query, Sample
from dpdist.engine.rounds import drive, visit_blocks
from dpdist.models.protocol import StratumModel
from dpdist.privacy.noise import simulated_noise
from dpdist.sampling.samplers import Sampler

T = TypeVar("T")


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
    sampler: Sampler,
    key: Key,
    stratum: str,
    blocks: Sequence[Records],
    recorders: Sequence[BlockRecorder] | None = None,
    noise: Callable[[Noise], Floats] | None = None,
    answer: Callable[[Query], Any] | None = None,
) -> T:
    """Runs a mechanism's rounds over blocks in memory, and returns what they return.

    Each block's carry, its per-record values, stays with the block between rounds. `recorders` has one entry for each
    block; without it no by-products are stored. `noise` gives noise to the mechanism. Without it, fresh noise is drawn but
    not stored, which suits runs that are neither resumed nor released. Queries are answered under the noise, unless
    `answer` answers them.
    """
    carries: list[Carry] = [{} for _ in blocks]
    kept = [Unrecorded()] * len(blocks) if recorders is None else recorders

    def visit(request: Pass) -> Floats:
        return visit_blocks(request, blocks, carries, kept)

    return drive(rounds, model, sampler, key, stratum, visit, noise or fresh_noise, answer)


def fresh_noise(request: Noise) -> Floats:
    """Draws fresh noise of the requested law and scale with OpenDP."""
    from dpdist.privacy.noise import whole_gaussian, whole_laplace

    return (whole_gaussian if request.law == "gaussian" else whole_laplace)(request.scale, request.size)


def noise_of(key: Key) -> Callable[[Noise], Floats]:
    """Returns a function that draws the requested noise from a key.

    It must not be used for a release, whose noise must not be reproducible.
    """

    def noise(request: Noise) -> Floats:
        return simulated_noise(request.law, request.scale, request.size, key.generator("noise", set=request.set))

    return noise
