"""Defines the interface of a mechanism, a generator of requests that sees only totals, and of the objects that serve it.

    total = yield Pass(kernel, combine)      # visit every record block of the stratum, combine partials in block order
    draws = yield Sample(posterior, …)       # draw from a posterior: statistics of weighted records, or clamped records
    noisy = yield Measurement(sums, noise)   # sums plus noise
    best = yield Choice(scores, noise)       # which score is the largest under noise

The last two are queries. The engine draws their noise and applies it, and the mechanism gets the answer alone.

Kernels run where the records are stored. The per-record values of a kernel (F, α, …) are the block's *carry* and stay
with the records.
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
"""Constants that a reference fixed for a stratum before the current file was read.

The type is the mechanism's; None without a reference.
"""
Carry = dict[str, Floats]
Columns = dict[str, Floats | Ints]
"""Per-record by-products by name, each (record,)."""


class Kernel(Protocol):
    """Runs on one block: reads records and carry, may write the carry and the recorder, and returns a partial result."""

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats: ...


class Pass(NamedTuple):
    kernel: Kernel
    combine: Literal["sum", "max", "concat"]


class Sample(NamedTuple):
    """Request for draws.

    Set 0 holds the S draws over which bounds are taken. Set k ≥ 1 is one separate draw for the k-th synthetic set.
    """

    posterior: Floats | Clamped
    stage: str
    set: int = 0
    model: StratumModel | None = None
    """The model to draw from; None for the stratum's own model. A mechanism may have another model from its reference."""


class Noise(NamedTuple):
    """Discrete noise of a scale (b, or σ of the Gaussian law), (size,): the k-th that a stratum draws, by `set`.

    Noise is drawn once and stored before use. Stored noise is not reused for other sums, because the difference of the
    noisy sums would be exact.
    """

    scale: Fraction
    size: int
    set: int
    law: NoiseName = "laplace"
    query: str = ""
    """Checksum of the query that is summed: limits, units, bins."""
    sums: str = ""
    """Checksum of the exact sums; confidential, as the sums are."""


class Query(Protocol):
    """Request for an answer under noise. The engine draws the noise and gives the mechanism `under(noise)`."""

    @property
    def noise(self) -> Noise: ...

    def under(self, noise: Floats) -> Any: ...


class Measurement(NamedTuple):
    """Request for sums plus noise, in the shape of the sums."""

    sums: Floats
    """Whole numbers; confidential."""
    noise: Noise
    """One for every sum."""

    def under(self, noise: Floats) -> Floats:
        return np.asarray(self.sums + noise.reshape(self.sums.shape))


class Choice(NamedTuple):
    """Request for the candidate with the largest noisy score in every row, (row,); of equal scores the first.

    Scores stay inside.
    """

    scores: Floats
    """(row, candidate), whole numbers; confidential."""
    noise: Noise
    """One for every score."""

    def under(self, noise: Floats) -> Ints:
        """Returns the candidates chosen under this noise, (…, row); `noise` is (…, score)."""
        return np.asarray((self.scores + noise.reshape(*noise.shape[:-1], *self.scores.shape)).argmax(axis=-1))


Rounds = Generator[Pass | Sample | Query, Any, "Released"]


class Released(NamedTuple):
    """The released object of a stratum: one θ per synthetic set, and nothing else."""

    parameters: tuple[Draws, ...]


class BlockRecorder(Protocol):
    """Receives a block's confidential by-products. Mechanisms do not know where the by-products are stored."""

    def bounds(self, columns: Confidential[Columns]) -> None: ...

    def log_lik(self, values: Confidential[Floats]) -> None:
        """Records the log likelihood, (draw, record), of the block."""
        ...

    @property
    def wants_log_lik(self) -> bool: ...


class StratumRecorder(Protocol):
    """Receives a stratum's confidential by-products."""

    def posterior(self, fit: str, draws: Confidential[Draws]) -> None: ...

    def summary(self, values: Confidential[dict[str, Any]]) -> None:
        """Records database_bound (Δ), epsilon_local (2Δ, zero_out), epsilon_local_range and diagnostics."""
        ...


class Mechanism(Protocol):
    """A mechanism.

    `promise` is called before data are read; `protect` is the generator; `learned` holds the reference's constants.
    """

    @property
    def scope(self) -> Literal["stratum", "file"]: ...

    def promise(self, job: Job) -> Promise: ...

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned = None) -> Rounds: ...
