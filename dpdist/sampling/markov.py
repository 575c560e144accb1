"""The sampler `stan`: Markov chains of Stan programs, and a user's generated quantities.

Every released θ is the last draw of a separate chain. The law of a draw differs from the posterior by an unknown total
variation γ. So the guarantee is (ε, (1 + e^ε)γ) at best (METHODS §2). While a chain runs, its process's arguments show its
seed and number. So anyone who can list this machine's processes must be trusted.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.errors import ProgramError, StanError, ToolchainError, install
from dpdist.core.files import write_text
from dpdist.core.records import Floats
from dpdist.job import Diagnostics as DiagnosticLimits, Program, Sampler, Toolchain
from dpdist.models.protocol import Clamped, Draws, StratumModel
from dpdist.models.user import CLAMPED_FACTOR, OUTCOME, WEIGHT, User
from dpdist.sampling.samplers import PosteriorSampler, Unconverged
from dpdist.sampling.stan import MAX_TREEDEPTH, Chains, StanSettings, fit, generate, log_density, seed_of
from dpdist.sampling.toolchain import Executable, cache_folder, executable


# R-hat is rank-normalised; ESS is the effective sample size. Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021),
# Bayesian Analysis 16(2); Betancourt (2016), arXiv:1604.00695.
@dataclass(frozen=True)
class ChainDiagnostics:
    """The worst figures over all varying scalars (R-hat, ESS) and all chains (E-BFMI); None if undefined.

    Constant scalars, such as the diagonal of a correlation matrix, are left out. `not_finite` is the number of scalars with
    a draw that is not finite.
    """

    worst_rhat: float | None
    worst_rhat_of: str | None
    min_ess_bulk: float | None
    min_ess_tail: float | None
    min_ebfmi: float | None
    divergences: int
    treedepth_hits: int
    draws: int
    chains: int
    not_finite: int

    def problems(self, policy: DiagnosticLimits) -> list[str]:
        """Sentences on figures beyond the job's limits; empty if there are none."""
        problems = []
        if self.not_finite:
            problems.append(f"{self.not_finite} quantities have draws that are not finite")
        if self.worst_rhat is not None and not self.worst_rhat <= policy.rhat:
            problems.append(f"R-hat of {self.worst_rhat_of} is {self.worst_rhat:.3f}, more than {policy.rhat}")
        for name, ess in (("bulk", self.min_ess_bulk), ("tail", self.min_ess_tail)):
            if ess is not None and not ess >= policy.ess:
                problems.append(f"{name} ESS is {ess:.0f}, less than {policy.ess:.0f}")
        if self.min_ebfmi is not None and not self.min_ebfmi >= policy.ebfmi:
            problems.append(f"E-BFMI is {self.min_ebfmi:.2f}, less than {policy.ebfmi}")
        total = self.draws * self.chains
        if self.divergences > policy.divergences * total:
            problems.append(f"{self.divergences} of {total} draws diverged")
        if self.treedepth_hits > policy.treedepth_hits * total:
            problems.append(f"{self.treedepth_hits} of {total} draws reached the maximum tree depth")
        return problems


def diagnose(chains: Chains, names: tuple[str, ...] | None = None) -> ChainDiagnostics:
    """Diagnostics of the named variables, or of all. Generated quantities such as log_lik are better left out."""
    arviz, xr = _arviz()
    labels, scalars = _scalars(chains, names)
    finite = np.isfinite(scalars).all(axis=(0, 1))
    varying = finite & (np.ptp(np.where(np.isfinite(scalars), scalars, 0), axis=(0, 1)) > 0)
    columns = np.flatnonzero(varying)
    data = xr.Dataset({"x": (("chain", "draw", "scalar"), scalars[:, :, columns])})
    several = len(columns) > 0 and scalars.shape[0] > 1 and scalars.shape[1] >= 4
    rhat = arviz.rhat(data)["x"].to_numpy() if several else np.array([])
    bulk, tail = (
        (arviz.ess(data, method=method)["x"].to_numpy() if len(columns) and scalars.shape[1] >= 4 else np.array([]))
        for method in ("bulk", "tail")
    )
    moves = np.ptp(chains.energy, axis=1) > 0 if chains.energy.shape[1] > 1 else np.zeros(len(chains.energy), bool)
    ebfmi = arviz.bfmi(chains.energy[moves]) if moves.any() else np.array([])
    worst = int(np.argmax(rhat)) if several else 0
    return ChainDiagnostics(
        float(rhat[worst]) if several else None,
        labels[columns[worst]] if several else None,
        _least(bulk),
        _least(tail),
        _least(ebfmi),
        int(chains.divergent.sum()),
        int((chains.treedepth >= MAX_TREEDEPTH).sum()),
        chains.lp.shape[1],
        chains.lp.shape[0],
        int((~finite).sum()),
    )


def _scalars(chains: Chains, names: tuple[str, ...] | None) -> tuple[list[str], np.ndarray[Any, np.dtype[np.float64]]]:
    """All scalars, (chain, draw, scalar), with their names."""
    labels, parts = list[str](), [np.empty((*chains.lp.shape, 0))]
    for name in chains.draws if names is None else names:
        values = chains.draws[name]
        labels += [
            f"{name}[{','.join(str(i + 1) for i in index)}]" if index else name for index in np.ndindex(values.shape[2:])
        ]
        parts.append(values.reshape(*values.shape[:2], -1))
    return labels, np.concatenate(parts, axis=2)


def _least(values: np.ndarray[Any, np.dtype[np.float64]]) -> float | None:
    return float(np.min(values)) if len(values) else None


def _arviz() -> tuple[Any, Any]:
    """Imports ArviZ and xarray at first use, because it takes half a second."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing a major refactor", FutureWarning)
            import arviz
        import xarray
    except ImportError:
        raise ToolchainError("arviz is not installed", "the extra 'stan'", install("arviz")) from None
    return arviz, xarray


TRIED_PARAMETERS, TRIED_RECORDS = 16, 8
"""Number of parameter draws, and of records, on which a user's program is tested."""
GENERATED_VALUES = 2**20
"""Largest number of records × draws in one run of generated quantities."""


@dataclass(frozen=True)
class StanSampler(PosteriorSampler):
    """Runs chains by NUTS.

    If an attempt fails, or exceeds a limit under `policy: fail`, it is repeated with another seed.
    """

    settings: Sampler
    policy: DiagnosticLimits
    folder: Path
    """Folder for the private folders of fits."""

    def sample(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        chains, figures = self._sampled(model, posterior, self.settings.chains, _seed(rng), 1)
        return Draws(_values(model, chains, slice(None)), self.settings.chains, figures)

    def draw(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        """The last draw of a separate chain, whose random numbers depend on 62 secret bits."""
        seed, number, records_seed = _seed(rng), _seed(rng), _seed(rng)
        chains, _ = self._sampled(model, posterior, 1, seed, number)
        theta = Draws(_values(model, chains, slice(-1, None)))
        return model.with_records(theta, records_seed) if isinstance(model, GeneratedQuantities) else theta

    def _sampled(
        self, model: StratumModel, posterior: Floats | Clamped, chains: int, seed: int, number: int
    ) -> tuple[Chains, dict[str, float]]:
        """Runs chains, and returns them with their diagnostics. Under `policy: fail` they must meet the job's limits."""
        of_job, data, why = self.settings, data_of(model, posterior), ""
        settings = StanSettings(chains, of_job.warmup, of_job.draws, of_job.adapt_delta)
        names = tuple(p.name for p in model.parameters) if isinstance(model, User) else None
        for attempt in range(of_job.attempts):
            try:
                sampled = fit(self.program(model), data, settings, seed_of(seed, attempt), self.folder, number)
            except StanError as error:
                why = str(error)
                continue
            diagnostics = diagnose(sampled, names)
            missed = diagnostics.problems(self.policy)
            if not missed or self.policy.policy == "warn":
                return sampled, {"missed": float(len(missed)), **_figures(diagnostics), "attempt": float(attempt)}
            why = "the chains did not meet the job's limits on diagnostics"
        raise Unconverged(f"{why}, in {of_job.attempts} attempts")

    def complete(self, model: StratumModel) -> StratumModel:
        """A user's model with a way to run its program, which generates `log_lik` or records.

        Other models are unchanged.
        """
        if isinstance(model, User):
            return GeneratedQuantities(**vars(model), toolchain=self.settings.toolchain, folder=self.folder)
        return model

    def program(self, model: StratumModel) -> Executable:
        return compiled(model.program, self.settings.toolchain)


@dataclass(frozen=True, kw_only=True)
class GeneratedQuantities(User):
    """A user's model that can run its program's generated quantities."""

    toolchain: Toolchain
    folder: Path

    def run(self, data: Mapping[str, Any], draws: Draws, seed: int) -> dict[str, Floats]:
        """Generated quantities by name, (draw, …) each."""
        values = {name: array[None] for name, array in draws.values.items()}
        generated = generate(compiled(self.program, self.toolchain), data, values, seed, self.folder)
        return {name: values[0] for name, values in generated.items()}

    def log_lik(self, draws: Draws, records: Records) -> Floats:
        """Log likelihood (draw, record): the program's `log_lik`, part by part, or the job's Python function."""
        if self.function is not None:
            return super().log_lik(draws, records)
        parts = records.blocks(max(1, GENERATED_VALUES // len(draws)))
        return np.concatenate([self._generated(draws, part) for part in parts], axis=1)

    def _generated(self, draws: Draws, records: Records) -> Floats:
        data = self.data_of(records.row, records.outcome, records.weight, np.ones(len(records)), generate=True)
        return self.run(data, draws, 1)["log_lik"]

    def with_records(self, theta: Draws, seed: int) -> Draws:
        """θ together with synthetic records of all crosstab rows, which the program generates as `y_rep` and `w_rep`."""
        low, high = self.outcome_bounds
        crosstab = self.crosstab_rows
        placeholder = np.full(len(crosstab), np.round((low + high) / 2.0) if self.integer else (low + high) / 2.0)
        ones = np.ones(len(crosstab))
        generated = self.run(self.data_of(crosstab, placeholder, ones, ones, generate=True), theta, seed)
        outcome, weight = generated["y_rep"], generated["w_rep"] if self.weighted else ones[None]
        if outcome.shape != (1, len(crosstab)) or weight.shape != (1, len(crosstab)):
            raise ProgramError(
                self.program.name, "the size of y_rep or w_rep differs from that of the data", "declare vector[N]"
            )
        if np.isnan(outcome).any() or not (np.isfinite(weight) & (weight > 0)).all():
            found_ = "y_rep is not a number, or w_rep is not a finite weight above 0"
            raise ProgramError(self.program.name, found_, "correct the generated quantities: another seed does not help")
        outcome = np.clip(np.round(outcome) if self.integer else outcome, low, high)
        return replace(theta, values={**theta.values, OUTCOME: outcome, WEIGHT: weight})


def check_clamp(model: GeneratedQuantities, theta: Draws, draws: Draws, records: Records) -> None:
    """Checks, on public records, that the program weights a record by exp(clamp(α(log_lik − reference), ±clamp)).

    This weight is the change of the program's log density when the record's α changes from 1 to 0. Raises
    `ProgramError`.
    """
    points = Draws({name: values[:: max(1, len(draws) // TRIED_PARAMETERS)] for name, values in draws.values.items()})
    centred = model.log_lik(points, records) - (offset := model.log_lik(theta, records)[0])
    clamp = float(np.median(np.abs(centred)))
    program, ones = compiled(model.program, model.toolchain), np.ones(len(records))

    def density(alpha: Floats) -> Floats:
        data = model.stan_records(records, alpha, offset, clamp)
        return log_density(program, data, points.values, model.folder)

    at_ones = density(ones)
    for number in range(0, len(records), max(1, len(records) // TRIED_RECORDS)):
        without = ones.copy()
        without[number] = 0.0
        factor = at_ones - density(without)
        if not np.allclose(factor, np.clip(centred[:, number], -clamp, clamp), atol=1e-9 * (1.0 + np.abs(at_ones).max())):
            fault = "on the reference's records, its target does not use the clamped log likelihood of a record"
            raise ProgramError(model.program.name, fault, f"weigh record n by {CLAMPED_FACTOR}, log_lik[n] being its log p")


@lru_cache(maxsize=32)
def compiled(program: str | Program, toolchain: Toolchain) -> Executable:
    """The executable of a program; a process looks it up once."""
    return executable(source_of(program), toolchain)


def source_of(program: str | Program) -> str | Path:
    """What the toolchain compiles: the name of a shipped program, or a copy of a user's program in the cache."""
    if isinstance(program, str):
        return program
    digest = hashlib.sha256(program.text.encode()).hexdigest()[:20]
    path = cache_folder() / "programs" / digest / Path(program.name).with_suffix(".stan").name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, program.text)
    return path


def _values(model: StratumModel, chains: Chains, which: slice) -> Mapping[str, Floats]:
    return model.from_stan({name: _flat(values)[which] for name, values in chains.draws.items()})


def data_of(model: StratumModel, posterior: Floats | Clamped) -> Mapping[str, Any]:
    """The data for a program. For a clamped posterior these are the records, and statistics of no records."""
    if not isinstance(posterior, Clamped):
        return model.stan_data(posterior)
    on = Clamped(posterior.rows[posterior.alpha > 0], posterior.clamp)
    nothing = model.statistics(on.records.part(0, 0), np.empty(0))
    return {**model.stan_data(nothing), **model.stan_records(on.records, on.alpha, on.offset, on.clamp)}


def _figures(diagnostics: ChainDiagnostics) -> dict[str, float]:
    """Diagnostics as numbers; NaN if not defined."""
    figures = asdict(diagnostics).items()
    return {name: np.nan if value is None else float(value) for name, value in figures if name != "worst_rhat_of"}


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(1, 2**31 - 1))


def _flat(values: Floats) -> Floats:
    """Reshapes (chain, draw, …) to (draw, …), chain after chain."""
    return values.reshape(-1, *values.shape[2:])
