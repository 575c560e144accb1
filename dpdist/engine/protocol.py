"""What a mechanism is: a generator of requests that sees only totals; and the parties that serve it.

    total = yield Pass(kernel, combine)      # visit every record block of the stratum, combine partials in block order
    draws = yield Sample(posterior, …)       # draw from a posterior: statistics of weighted records, or clamped records
    noise = yield Noise(scale, size, set, …) # noise for a sum, bound to it
    best = yield Choice(scores, noise)       # which score is the largest under noise

Kernels run where the records are. What a kernel leaves per record (F, α, …) is the block's *carry*: it stays there.
"""

from __future__ import annotations

from collections.abc import Generator
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from dpdist.core.confidential import Confidential
from dpdist.core.records import Floats, Ints, Records
from dpdist.job import Job, NoiseName
from dpdist.models.protocol import Clamped, Draws, StratumModel
from dpdist.privacy.guarantees import Promise

Learned = Any
"""What a reference fixed for a stratum before the current file was read: a type of the mechanism's own, or None."""
Carry = dict[str, Floats]
Columns = dict[str, Floats | Ints]
"""Per-record by-products by name, each (record,)."""


class Kernel(Protocol):
    """Runs on one block: reads records and carry, may write the carry and the recorder, returns a partial."""

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats: ...


class Pass(NamedTuple):
    kernel: Kernel
    combine: Literal["sum", "max", "concat"]


class Sample(NamedTuple):
    """Set 0: the S draws that bounds are taken over. Set k ≥ 1: one draw apart from them, for the k-th synthetic set."""

    posterior: Floats | Clamped
    stage: str
    set: int = 0
    model: StratumModel | None = None
    """Unset: the stratum's own; a mechanism that a reference told more has another."""


class Noise(NamedTuple):
    """Discrete noise of a scale (b, or σ of the Gaussian law), (size,), for the k-th set: drawn once and kept before it is
    used. Kept noise serves no other sums: they would differ from these by nothing that noise hides."""

    scale: Fraction
    size: int
    set: int
    law: NoiseName = "laplace"
    query: str = ""
    """Checksum of what is summed: limits, units, bins."""
    sums: str = ""
    """Checksum of the exact sums; confidential, as they are."""


class Choice(NamedTuple):
    """Which candidate of every row has the largest score under noise, (row,); of equal ones the first. Scores stay here."""

    scores: Floats
    """(row, candidate), whole numbers; confidential."""
    noise: Noise
    """One for every score."""

    def among(self, noise: Floats) -> Ints:
        """The candidates chosen under this noise, (…, row); `noise` is (…, score)."""
        return np.asarray((self.scores + noise.reshape(*noise.shape[:-1], *self.scores.shape)).argmax(axis=-1))


Rounds = Generator[Pass | Sample | Noise | Choice, Any, "Released"]


class Released(NamedTuple):
    """What a stratum releases: one θ per synthetic set, and nothing else."""

    parameters: tuple[Draws, ...]


class BlockRecorder(Protocol):
    """Takes a block's confidential by-products; mechanisms do not know where they go."""

    def bounds(self, columns: Confidential[Columns]) -> None: ...

    def log_lik(self, values: Confidential[Floats]) -> None:
        """(draw, record) of the block."""
        ...

    @property
    def wants_log_lik(self) -> bool: ...


class StratumRecorder(Protocol):
    """Takes a stratum's confidential by-products."""

    def posterior(self, fit: str, draws: Confidential[Draws]) -> None: ...

    def summary(self, values: Confidential[dict[str, Any]]) -> None:
        """database_bound (Δ), epsilon_local (2Δ, zero_out), epsilon_local_range, diagnostics."""
        ...


class Mechanism(Protocol):
    """`promise` speaks before data are seen; `protect` is the generator; `learned` is what the job's reference fixed."""

    @property
    def scope(self) -> Literal["stratum", "file"]: ...

    def promise(self, job: Job) -> Promise: ...

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned = None) -> Rounds: ...
