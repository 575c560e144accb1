"""Running a mechanism's rounds over a stratum: map a kernel over record blocks, add up in block order, answer, repeat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from dpdist.keys import Key
from dpdist.mechanisms.protocol import BlockRecorder, Carry, Pass, Released, Rounds
from dpdist.models.protocol import Exact
from dpdist.records import Floats, Records
from dpdist.sampling.exact import Posterior, sample

_COMBINE = {"sum": np.add, "max": np.maximum}


def run_rounds(
    rounds: Rounds, model: Exact, key: Key, stratum: str, blocks: Sequence[Records], recorders: Sequence[BlockRecorder]
) -> Released:
    """Drive the generator to its end; each block's carry stays with the block between rounds.

    Draws of the same (stage, set) use the same stream in every round: common random numbers.
    """
    carries: list[Carry] = [{} for _ in blocks]
    reply: object = None
    while True:
        try:
            request = rounds.send(reply)
        except StopIteration as end:
            released: Released = end.value
            return released
        if isinstance(request, Pass):
            partials: list[Floats] = [
                request.kernel(records, carry, recorder)
                for records, carry, recorder in zip(blocks, carries, recorders, strict=True)
            ]
            reply = reduce(_COMBINE[request.combine], partials)
        else:
            rng = key.generator(request.stage, stratum, set=request.set)
            reply = sample(Posterior(model, request.statistics), request.draws, rng)
