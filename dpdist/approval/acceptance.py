"""A release's gates: limits on errors that it must meet before it is published, measured under noise.

The noisy values, and so the decision to publish, are covered by ε (docs/methods.md, §7c). A gate limits an order
statistic of the cells' errors: the largest or the median. A gate on coverage limits a quantile, at the required share,
of each interval's distance from its middle to the direct figure, in half widths. This quantile is at most 1 if the
required share of intervals contains the direct figure. Given the release, one record moves a gate by at most 1 unit,
under every adjacency:

1. A record with weight w and outcome y adds (a, b) with |b| ≤ a ≤ 1 to each cell that holds it: a = min(w, U)/U, where U is
   the weight's public bound, and b is a times the clipped outcome's position between its public bounds, from −1 to 1
   (`privacy.cell_sums`). The error of a count is Σa − r, and that of a mean Σ(b − κa) with |κ| ≤ 1, where r and κ
   are released. So a record's contribution lies in an interval of length 1 or 2 that contains 0. A record may be switched
   off, left out, or exchanged, also for one in other cells. Each of these moves the error of every cell by at most that
   length.
2. An error is divided by a released scale. `unit` is the largest ratio of length to scale over all cells.
3. |·|, and every order statistic, change by at most the largest change of their arguments.
4. Rounding down to multiples of unit/2^20 adds at most one multiple. This gives GATE_SENSITIVITY.
5. A cell without a published figure, or with a figure of 0, counts as an error beyond every limit. Which cells these are
   follows from the release, so 1 to 4 hold for all others.

Discrete Laplace noise of scale GATE_SENSITIVITY/ε on each gate's value costs ε for each gate, beside the release's ε.
This is adaptive composition, because the values depend on the records and on the release. Hod & Canetti (arXiv
2405.00267) select privately among many tries; a single try needs no selection.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpdist.confidential.records import Records
from dpdist.core.cautions import Caution
from dpdist.core.errors import JobError, NotAccepted, Problem
from dpdist.core.files import write_json
from dpdist.core.keys import digest
from dpdist.core.records import UNIT, Crosstab, Floats
from dpdist.engine.protocol import Noise
from dpdist.job import Gate, Job, Statistic, budget_text
from dpdist.privacy.cell_sums import CellBounds
from dpdist.privacy.proof import GATE_SENSITIVITY, query_of_gates
from dpdist.storage.noise_once import noise_once
from dpdist.storage.workspace import Workspace

HALF = 0.5
ACCEPTED = "acceptance"
"""Name of the completion record that is written when the gates are measured."""


class GateFigures(NamedTuple):
    """Published figures of some cells, (cell,), which a gate compares with direct figures."""

    centre: Floats
    """The value from which errors are measured."""
    scale: Floats
    """The value by which errors are divided."""
    counts: Floats
    """Published counts."""


@dataclass(frozen=True)
class GateResult:
    """A gate's result as it is published."""

    gate: str
    measured: float | None
    """The noisy value; None if it is beyond every limit because too many cells have no figure."""
    noise_sd: float
    limit: float
    figures: int
    """Number of cells over which the order statistic was taken."""
    accepted: bool
    without_figure: int = 0
    """Number of these cells with no figure, or with a figure of 0."""


def gate_noise(space: Workspace, job: Job, sums: Mapping[str, Floats]) -> Floats:
    """Draws the gates' noise once, (gate,), in parts of unit/2^20; the noise is bound to the gates and the records'
    `sums`.

    It is drawn before any noise of the release is stored. Raises `WorkspaceError` if stored noise belongs to other gates or
    sums.
    """
    gates = [[gate.measure, gate.of.text, gate.limit] for gate in job.gates]
    tables = [
        [table.name, table.by, table.margins, *([list(table.universe.items())] if table.universe else [])]
        for table in job.gated_tables
    ]
    query = digest({"gates": gates, "tables": tables, "bounds": bounds_of(job), "sensitivity": GATE_SENSITIVITY})
    request = Noise(noise_scale(job), len(gates), 0, "laplace", query, digest(dict(sums)))
    return noise_once(space, space.noise("accept", 0, 0), request)


def noise_scale(job: Job) -> Fraction:
    """Returns the noise scale in parts of unit/2^20. Each gate has an equal share of the ε for gates."""
    return query_of_gates(job).scale


def measure(
    space: Workspace,
    job: Job,
    crosstab: Crosstab,
    sums: Mapping[str, Floats],
    published: Mapping[str, pd.DataFrame],
    noise: Floats,
) -> list[GateResult]:
    """Measures the noisy value of every gate, once. `published` holds the release's tables by name."""
    measure_path = space.confidential / f"{ACCEPTED}.json"
    if not space.finished(ACCEPTED):
        results = [
            gate_value(job, gate, crosstab, sums, published, eta) for gate, eta in zip(job.gates, noise, strict=True)
        ]
        write_json(measure_path, [asdict(result) for result in results])
        space.mark(ACCEPTED, [measure_path])
    space.store.download(measure_path)
    return [GateResult(**result) for result in json.loads(measure_path.read_text(encoding="utf-8"))]


def refuse_unmet(results: Iterable[GateResult]) -> None:
    """Raises `NotAccepted` if a gate is not met. The message shows noisy values only, which ε covers."""
    if unmet := [result for result in results if not result.accepted]:
        raise NotAccepted(
            "; ".join(map(_beyond, unmet)), "; ".join(f"{result.gate}: at most {result.limit:g}" for result in unmet)
        )


def _beyond(result: GateResult) -> str:
    if result.measured is not None:
        return f"{result.gate}: {result.measured:.3g} (noise sd {result.noise_sd:.2g})"
    verb = "has" if result.without_figure == 1 else "have"
    cells = f"{result.without_figure} of {result.figures} cells {verb} no figure"
    return f"{result.gate}: beyond every limit, because {cells}, or a figure of 0"


IN_WORDS = (
    "Before publication, these gates were measured with noise, at the cost of a part of ε, and all were met. ε covers the "
    "gates' answer, but neither runs in other workspaces nor a later decision to withhold the release. `measured` is the "
    "noisy value. For gates on the largest or the median error, it is a share of the published figure. For gates on "
    "coverage, it is the distance, in half widths of the published interval, within which the required share of direct "
    "estimates lies. A cell whose published figure is missing or 0 counts as an error beyond every limit; "
    "`without_figure` is the number of these cells, out of all `figures`. Gates were measured only on the tables listed "
    "under `tables`, and on no table that was added later."
)


def described(job: Job, results: Iterable[GateResult]) -> dict[str, Any]:
    """Returns the statement's entry on the gates, all of which were met."""
    tables = [table.name for table in job.gated_tables]
    entry = {"in_words": IN_WORDS, "epsilon": budget_text(job.epsilon.gates), "tables": tables}
    return entry | {"gates": [asdict(result) for result in results]}


def bounded_sums(job: Job, crosstab: Crosstab, records: Iterable[Records]) -> dict[str, Floats]:
    """Returns the exact sums Σa and Σb by outcome, (row, 2), in parts of 1/2^20; the module's docstring defines a and b."""
    sums, public = {name: np.zeros((len(crosstab), 2)) for name in job.outcomes}, job.survey.design_weights
    for block in records:
        weight = block.weight if public is None else public.of(crosstab)[block.row]
        for (name, bounds), outcome in zip(bounds_of(job).items(), block.outcomes.T, strict=True):
            np.add.at(sums[name], block.row, bounds.pairs(weight, outcome))
    return sums


def bounds_of(job: Job) -> dict[str, CellBounds]:
    """Returns the public bounds of the weight and of every outcome."""
    weight = job.columns[job.survey.weight].bounds if job.survey.weight else None
    most = weight[1] if weight is not None else 1.0
    return {name: CellBounds(most, *column.ends) for name, column in job.outcome_columns.items()}


def gate_value(
    job: Job, gate: Gate, crosstab: Crosstab, sums: Mapping[str, Floats], published: Mapping[str, pd.DataFrame], eta: float
) -> GateResult:
    """Returns a gate's value under noise, and its limit. `eta` is the noise in parts of unit/2^20."""
    outcome = gate.of.variable or job.outcomes[0]
    errors, lengths = list[Floats](), list[Floats]()
    for table in job.gated_tables:
        cells = table.cells(crosstab)
        figures = _figures(gate, published[table.name])
        scaled = scaled_errors(gate.of, bounds_of(job)[outcome], cells.membership @ sums[outcome], figures)
        errors, lengths = [*errors, scaled[0]], [*lengths, scaled[1]]
    value, length = np.concatenate(errors), np.concatenate(lengths)
    usable = np.isfinite(value) & np.isfinite(length)
    number, gaps = len(value), int((~usable).sum())
    share = {"largest": 1.0, "median": HALF, "coverage": gate.limit}[gate.measure]
    limit = 1.0 if gate.measure == "coverage" else gate.limit
    unit = float(length[usable].max(initial=0.0))
    sd = float(np.sqrt(2.0) * float(noise_scale(job)) * unit / UNIT)
    if ceil(share * number) > number - gaps:
        return GateResult(gate.text, None, sd, limit, number, False, gaps)
    noisy = (order_statistic(np.where(usable, value, np.inf), unit, share) + eta) * unit / UNIT
    return GateResult(gate.text, float(noisy), sd, limit, number, bool(noisy <= limit), gaps)


def order_statistic(values: Floats, unit: float, share: float) -> float:
    """Returns the value that the share `share` of values does not exceed, rounded down to parts of unit/2^20."""
    position = ceil(share * len(values)) - 1
    return float(np.floor(np.sort(values)[position] / unit * UNIT))


def scaled_errors(of: Statistic, bounds: CellBounds, sums: Floats, figures: GateFigures) -> tuple[Floats, Floats]:
    """Returns every cell's distance between direct and published figure, and the largest contribution of one record,
    both over the scale.

    `sums` holds Σa and Σb in parts of 1/2^20, (cell, 2). The error of a mean with published value r is Σw(y − r) over the
    published count.
    """
    a, b = sums[:, 0] / UNIT, sums[:, 1] / UNIT
    with np.errstate(divide="ignore", invalid="ignore"):
        if of.name == "count":
            return np.abs(a * bounds.weight - figures.centre) / figures.scale, bounds.weight / figures.scale
        kappa = np.clip((figures.centre - bounds.centre) / bounds.half_width, -1.0, 1.0)
        length = bounds.weight * bounds.half_width / np.where(figures.counts > 0, figures.counts, np.nan)
        return np.abs(b - kappa * a) * length / figures.scale, 2.0 * length / figures.scale


def _figures(gate: Gate, rows: pd.DataFrame) -> GateFigures:
    default = "parameters" if (rows["estimator"] == "parameters").any() else "records"
    rows = rows[rows["estimator"] == default]
    count = rows[rows["statistic"] == "count"]["estimate"].to_numpy(dtype=float)
    mine = rows[(rows["statistic"] == gate.of.name) & ((gate.of.variable is None) | (rows["variable"] == gate.of.variable))]
    centre = mine["estimate"].to_numpy(dtype=float)
    scale = np.abs(centre)
    if gate.measure == "coverage":
        low, high = mine["lower"].to_numpy(dtype=float), mine["upper"].to_numpy(dtype=float)
        centre, scale = (low + high) / 2.0, (high - low) / 2.0
    return GateFigures(centre, np.where(scale > 0, scale, np.nan), count)


# The noise of a gate follows from the release: it is inversely proportional to the smallest published count, and for means
# to that count times the mean. A plan states how large these figures must be. A gate is refused if its noise exceeds its
# limit even in the most favourable case. Gates on coverage, and all gates under secret sizes, are not checked.
def numerator(job: Job, gate: Gate) -> float:
    """Returns the gate's noise sd times the figure by which it is divided.

    This is the smallest published count; for means the smallest count times |mean|. For coverage it is the smallest
    half width of an interval; for means, times the count.
    """
    bounds = bounds_of(job)[gate.of.variable or job.outcomes[0]]
    length = bounds.weight * (1.0 if gate.of.name == "count" else 2.0 * bounds.half_width)
    return float(np.sqrt(2.0) * float(noise_scale(job)) * length / UNIT)


def cautions(job: Job) -> Iterator[Caution]:
    """Says for every gate how large figures must be for its noise."""
    for gate in job.gates:
        limit = 1.0 if gate.measure == "coverage" else gate.limit
        deviation = numerator(job, gate)
        numbers = {"deviation": f"{deviation:,.0f}", "least": f"{deviation / limit:,.0f}"}
        yield Caution.of("noise_of_gate", gate=gate.text, smallest=_smallest(gate), **numbers)


def refuse_unreachable(job: Job, crosstab: Crosstab) -> None:
    """Raises `JobError` for gates whose noise exceeds the limit at all weights and means within public bounds."""
    if job.sizes_secret:
        return
    problems = []
    for i, gate in enumerate(job.gates):
        if gate.measure != "coverage" and (least := _least_sd(job, gate, crosstab)) > gate.limit:
            fault = f"the noise has a standard deviation of at least {least:.2g}, which exceeds the limit {gate.limit:g}"
            remedy = "list tables of larger cells, use fewer gates or narrower bounds, or give gates more of the budget"
            problems.append(
                Problem(f"accept.gates[{i}]", fault, "a limit of several times the standard deviation of the noise", remedy)
            )
    if problems:
        raise JobError(job.dataset, problems)


def _least_sd(job: Job, gate: Gate, crosstab: Crosstab) -> float:
    """Returns the noise sd if every weight were its upper bound, and every mean as far from 0 as its bounds allow."""
    bounds = bounds_of(job)[gate.of.variable or job.outcomes[0]]
    counts = [table.cells(crosstab).membership @ crosstab.count for table in job.gated_tables]
    records = np.concatenate(counts)
    most = float(records[records > 0].min(initial=np.inf)) * bounds.weight
    if gate.of.name == "mean":
        most *= abs(bounds.centre) + bounds.half_width
    return numerator(job, gate) / most


def _smallest(gate: Gate) -> str:
    if gate.measure == "coverage":
        return f"the smallest half width of an interval{'' if gate.of.name == 'count' else ', times the count'}"
    return f"the smallest listed count{'' if gate.of.name == 'count' else ' times its |mean|'}"
