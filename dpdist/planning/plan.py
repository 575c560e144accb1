"""The plan of a run: steps, time, memory, design effects of a reference; never a record, sizes only if not secret."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.cautions import Caution
from dpdist.core.records import TOTAL, Crosstab, Floats, SmallCounts, counted_and_named, stated_universe
from dpdist.estimation.direct import Direct
from dpdist.estimation.estimators import NORMAL_90
from dpdist.job import DesignEffect, Job, StatisticName, budget_text
from dpdist.job.data import LARGEST_EFFECT
from dpdist.job.tables import Nesting
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import proof_of
from dpdist.models.laws import can_refit, has_laws, needs_laws, needs_rows
from dpdist.models.protocol import DRAWS, LARGEST, SMALLEST, Cost, StratumModel, supports
from dpdist.planning.blocks import PROCESS_BYTES, Layout, log_lik_bytes, seconds
from dpdist.planning.goodness_of_fit import GoodnessOfFit
from dpdist.privacy import adjacency, claims
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.noisy_counts import count_small
from dpdist.survey.census import Census, design_of, records_as_they_came, replicates_as_they_came
from dpdist.survey.earlier_release import Costs, composed
from dpdist.survey.reference_file import ReferenceFile
from dpdist.survey.released_reference import ReferenceRelease
from dpdist.survey.schema import replicates
from dpdist.survey.source import BY_PLUGIN, Source, reader_of

FEWEST_RECORDS = 10
"""Smallest number of records of a cell whose design effect is used."""
NEARLY_CONSTANT = 1e-7
"""Relative standard error below which a figure counts as fixed by the design, and has no design effect."""
DIGITS = 3
"""Significant digits of a design effect."""

Key = tuple[StatisticName, str | None, frozenset[str] | None]
"""A statistic, its outcome and the columns that cells are crossed by; None for all cells."""


@dataclass(frozen=True)
class ReferenceDesign:
    """Facts about the survey design, estimated from the records of a reference. All of them are public.

    `effective` is the number of equally weighted records that would count for as much (Kish). `errors` holds the median
    direct standard error of each statistic over cells, as a share of the figure. If the reference is an earlier release,
    the effects are those that it states, and nothing else is known.
    """

    effects: tuple[DesignEffect, ...]
    records: int | None = None
    effective: float = np.nan
    errors: Mapping[str, float] = field(default_factory=dict)

    def described(self) -> list[dict[str, Any]]:
        """Returns the design effects as JSON values for the statement."""
        return [effect.model_dump(mode="json") for effect in self.effects]

    def in_words(self) -> Iterator[str]:
        """Formats lines on the sample's size and its direct errors."""
        if self.records is not None:
            yield f"reference: {self.records:,} records carry as much information as {self.effective:,.0f} of equal weight"
        for name, share in self.errors.items():
            yield f"reference: in the median cell, the direct standard error of a {name} is {100 * share:.2g} % of it"


def reference_design(job: Job, reference: ReferenceFile) -> ReferenceDesign:
    """Estimates the design effects of every statistic of the job's tables."""
    by_record, census, source = job.by_record, reference.census, reference.source
    design = design_of(by_record, census)._replace(
        lonely=job.survey.lonely_record, population=np.empty(0), psu_population=None, psu_records=None
    )
    passes = [records_as_they_came(by_record, source, census, j) for j in range(len(job.outcomes))]
    replicates = replicates_as_they_came(by_record, source)
    records = Direct.of(by_record, census.crosstab, design, passes, replicates)
    weight = records.weight
    effective = float(weight.sum() ** 2 / (weight**2).sum())
    effects, errors = _ratios(job, records)
    return ReferenceDesign(tuple(_entries(effects)), len(weight), effective, errors)


def _ratios(job: Job, records: Direct) -> tuple[dict[Key, list[float]], dict[str, float]]:
    """Returns V/V₀ of cells by statistic and columns, and the median relative direct error of every statistic."""
    ratios, errors = defaultdict[Key, list[float]](list), defaultdict[str, list[float]](list)
    alone, n, seen = records.without_clusters, records.crosstab.count.astype(np.float64), set[tuple[Any, ...]]()
    for table in job.tables:
        cells = table.cells(records.crosstab)
        enough = cells.membership @ n >= FEWEST_RECORDS
        for statistic in table.statistics:
            base = statistic.of or statistic
            key = (table.by, table.margins, tuple(table.universe.items()), base)
            if key in seen:
                continue
            seen.add(key)
            estimated, without = records.estimate(cells, base), alone.estimate(cells, base)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio, error = estimated.variance / without.variance, np.sqrt(estimated.variance) / np.abs(estimated.value)
            varies = without.variance > (NEARLY_CONSTANT * without.value) ** 2
            for cell in np.flatnonzero(enough & varies & np.isfinite(ratio)):
                by_column = zip(cells.by, cells.labels[cell], strict=True)
                columns = frozenset(name for name, level in by_column if level != TOTAL)
                for which in (columns, None):
                    ratios[base.name, base.variable, which].append(float(ratio[cell]))
            errors[base.text] += error[enough & np.isfinite(error)].tolist()
    return ratios, {name: float(np.median(relative)) for name, relative in errors.items() if relative}


def _entries(ratios_of: dict[Key, list[float]]) -> Iterator[DesignEffect]:
    """Yields the effects. Effects of named columns come first, because a figure takes the first effect that fits it."""
    for (statistic, outcome, columns), ratios in sorted(ratios_of.items(), key=lambda entry: entry[0][2] is None):
        effect = float(f"{max(1.0, np.mean(ratios)):.{DIGITS}g}")
        by = None if columns is None else tuple(sorted(columns))
        yield DesignEffect(effect=min(effect, float(LARGEST_EFFECT)), statistics=(statistic,), outcome=outcome, by=by)


START_SECONDS = 2.0
"""Seconds for imports, compilation, checks and the pages of a release, whatever its size."""
DASK_SECONDS = 2.0
"""Seconds for the start of a scheduler and a worker."""
BATCH_SECONDS = 0.008
"""Seconds for the files of a batch of strata."""
FURTHER_SECONDS = 0.003
"""Seconds of a stratum for each statistic beyond counts, means and totals, from distribution functions under all laws."""
REFIT_SECONDS = 0.0042
"""Seconds for the standard errors of a stratum: a repeated search on a synthetic sample."""
SYNTHESIS_SECONDS = 0.0002
"""Seconds for the synthetic records of a stratum in one set."""
READ_SECONDS, WRITE_SECONDS = 1e-6, 2.5e-7
"""Seconds for a record: read, checked, stored and evaluated; and written to one synthetic set."""

NUMBER = 8 * DRAWS
"""Memory, in bytes, of a number under all draws of a law."""
STRATUM_BYTES = 2_500
"""Memory, in bytes, of a stratum's parameters and summaries."""
READ_BYTES, MOST_READ = 80, 1_500_000
"""Memory, in bytes, of a record that is evaluated, up to so many: further ones are read in parts."""
SAMPLED_BYTES = 40
"""Memory, in bytes, of a record of a stratum's synthetic sample."""
OF_ROW, OF_CELL, OF_TABLE = 9, 6, 5
"""Numbers for each outcome: of a crosstab row in three laws, of a cell's sums in three laws, and while a table is made."""


def drawn_bytes(job: Job, crosstab: Crosstab, model: StratumModel) -> int:
    """Projected memory, in bytes, of what standard errors are made from. `model` is that of a stratum with the most rows.

    Draws are held of all rows, or of all tables' cells, as standard errors need them; laws and samples are those of one
    batch unless tables need them all. Where sizes are secret, the samples count with their largest size.
    """
    if not has_laws(job, model):
        return 0
    if job.sizes_secret:  # batches are then those of strata alone
        crosstab = replace(crosstab, count=np.zeros_like(crosstab.count))
    strata, outcomes, batches = len(crosstab.stratum_labels), len(job.outcomes), crosstab.batches()
    sizes = {
        (table.by, table.margins, stated_universe(table.universe)): table.number_of_cells(crosstab) for table in job.tables
    }
    held = OF_ROW * len(crosstab) if needs_rows(job, crosstab) else OF_CELL * sum(sizes.values())
    laws = (3 if can_refit(model) else 2) * sum(parameter.size for parameter in model.parameters)
    numbers = outcomes * (held + OF_TABLE * max(sizes.values(), default=0))
    numbers += laws * (strata if needs_laws(job) else max(map(len, batches)))
    sample = _synthetic_sample(job, crosstab) if can_refit(model) else np.zeros(len(crosstab))
    sampled = SAMPLED_BYTES * max(int(sample[crosstab.rows_of_batch(batch)].sum()) for batch in batches)
    return NUMBER * numbers + STRATUM_BYTES * strata + sampled


def _synthetic_sample(job: Job, crosstab: Crosstab) -> Floats:
    """Records of the synthetic sample in every crosstab row, (row,), as `publish.refit` takes them."""
    if job.sizes_secret:
        return np.full(len(crosstab), float(LARGEST))
    share = np.minimum(1.0, LARGEST / np.maximum(crosstab.stratum_count, 1))[crosstab.stratum]
    return np.maximum(np.minimum(crosstab.count, SMALLEST), crosstab.count * share)


def projected_cost(job: Job, layout: Layout, model: StratumModel) -> Cost | None:
    """The projected cost of a run whose strata are fitted in closed form; None for others."""
    if job.mechanism.clamps or job.sampler.name != "exact" or not can_refit(model):
        return None
    crosstab, sets = layout.crosstab, job.synthetic_sets
    strata, records = len(crosstab.stratum_labels), int(crosstab.count.sum())
    protected = sum(seconds(crosstab.stratum_count.tolist(), layout.draws)) + BATCH_SECONDS * strata / layout.batch_strata
    further = sum(not statistic.plain for table in job.tables for statistic in table.statistics)
    shared = protected + strata * (REFIT_SECONDS + SYNTHESIS_SECONDS * sets)
    start = START_SECONDS + DASK_SECONDS * (job.runtime.executor == "dask")
    rest = records * (READ_SECONDS + WRITE_SECONDS * sets) + strata * further * FURTHER_SECONDS
    return Cost(start + shared + rest, shared if strata > 1 else protected, layout.largest_task_bytes)


SIZES_SECRET = "not shown: the job keeps sizes confidential"
MEMORY = "memory per task"
DRIVER = "memory of the driver"
STRATA = "strata"


@dataclass(frozen=True, repr=False)
class Plan:
    """The plan of a run, which prints in ten lines or fewer.

    `census` was taken from the file. All of it except its crosstab is confidential. The
    crosstab's counts are confidential too where the job keeps sizes secret.

    Parameters
    ----------
    job : the planned job.
    source : the confidential file.
    census : what one pass over the file found.
    promise : the guarantee, which does not depend on data.
    layout : strata, blocks and memory.
    reference : the job's reference, opened.
    goodness : how well a parametric family fits the reference.
    design : design effects from the reference's records, if the job asks for them.
    nestings : the maps of the job's hierarchies.

    Example
    -------
    >>> dpdist.validate("small.yaml").promise.total.epsilon
    Fraction(8, 1)
    """

    job: Job
    source: Source
    census: Census
    promise: Promise
    layout: Layout
    reference: ReferenceFile | ReferenceRelease | None = None
    goodness: GoodnessOfFit | None = None
    design: ReferenceDesign | None = None
    nestings: tuple[Nesting, ...] = ()

    def __str__(self) -> str:
        return plan_lines(self)

    __repr__ = __str__

    @cached_property
    def model(self) -> StratumModel:
        """The model of the first stratum, used for properties that the models of all strata share."""
        return builder_of(self.job).build(self.job, self.crosstab, self.crosstab.rows_of(0))

    @property
    def crosstab(self) -> Crosstab:
        return self.layout.crosstab

    @cached_property
    def cost(self) -> Cost | None:
        """The projected cost of a run, if it is known. Where sizes are secret, that of a file without records."""
        if not supports(self.model, "with_donors"):
            return None if self.job.sizes_secret else projected_cost(self.job, self.layout, self.model)
        referred = 0 if self.reference is None else self.reference.records
        return self.model.cost(referred + (0 if self.job.sizes_secret else records(self)))

    @property
    def largest_task_bytes(self) -> int:
        """Projected peak memory, in bytes, of the largest task."""
        of_model = 0 if self.cost is None else self.cost.bytes
        return max(self.layout.largest_task_bytes, of_model, self._table_bytes)

    @property
    def _table_bytes(self) -> int:
        """Projected peak memory, in bytes, of a worker that makes one of several tables: draws of all of them."""
        if len(self.job.tables) == 1 or needs_laws(self.job) or supports(self.model, "with_donors"):
            return 0
        return PROCESS_BYTES + self._drawn_bytes

    @cached_property
    def _drawn_bytes(self) -> int:
        crosstab = self.crosstab
        most_rows = int(np.argmax(np.bincount(crosstab.stratum, minlength=len(crosstab.stratum_labels))))
        return drawn_bytes(self.job, crosstab, builder_of(self.job).build(self.job, crosstab, crosstab.rows_of(most_rows)))

    @cached_property
    def publishing_bytes(self) -> int:
        """Projected peak memory, in bytes, of a process that reads, publishes and evaluates, and runs no task.

        A model that knows its cost publishes in as much memory as its task takes. Nothing follows from secret sizes.
        """
        if supports(self.model, "with_donors") and self.cost is not None:
            return self.cost.bytes
        read = 0 if self.job.sizes_secret else READ_BYTES * min(records(self), MOST_READ)
        return PROCESS_BYTES + read + self._drawn_bytes

    @property
    def driver_bytes(self) -> int:
        """Projected peak memory, in bytes, of the run's main process, which the executor `serial` gives the tasks, too."""
        serial = self.job.runtime.executor == "serial"
        return max(self.publishing_bytes, self.largest_task_bytes) if serial else self.publishing_bytes

    @property
    def proof(self) -> dict[str, Any]:
        """The proof record of the release."""
        return proof_of(self.job)

    @property
    def readers(self) -> dict[str, dict[str, str]]:
        """Plug-ins' readers, by what they read: input or reference."""
        sources = {"input": self.source, "reference": getattr(self.reference, "source", None)}
        return {which: origin for which, source in sources.items() if (origin := reader_of(source))}

    @property
    def small_counts(self) -> SmallCounts | None:
        """Sample counts that would be published and are below the job's minimum; None if no counts are published."""
        return count_small(self.job, self.crosstab, self.census.small)


def plan_lines(plan: Plan) -> str:
    """Returns the text of a plan, in ten lines or fewer: the input, the promise and the published tables."""
    job, figures = plan.job, sizes(plan)
    promised = claims.promised(plan.promise, {}) | {"exchange": job.budget.exchange}
    claimed = {name: text for name, text in claims.headline(promised).items() if name in ("guarantee", "aimed at")}
    facts = {
        "input": plan.source.name,
        "records": records_text(plan),
        **third_party(plan),
        **({"reference": reference(plan, plan.reference)} if plan.reference is not None else first_stage(job)),
        **{name: figures[name] for name in (STRATA, MEMORY) if name in figures},
        **claimed,
        **({"about": adjacency.headline(job)} if promised["guarantee"] != "none" else {}),
        "tables": ", ".join(table.name for table in job.tables) or "none",
    }
    return "\n".join([f"Plan of {job.dataset} {job.period}", *(f"  {name}: {text}" for name, text in facts.items())])


def third_party(plan: Plan) -> dict[str, str]:
    """Lines on parts that other distributions bring; none for those of dpdist."""
    text = "{}, third-party: {distribution} {version}"
    lines = {part: text.format(name, **origin) for part, (name, origin) in plan.job.third_party.items()}
    lines |= {f"statistic {name}": text.format(name, **of) for name, of in plan.job.third_party_statistics.items()}
    read = {f"reader of the {which}": origin for which, origin in plan.readers.items()}
    return lines | {which: text.format(origin["name"], **origin) for which, origin in read.items()}


def read_by(plan: Plan) -> list[str]:
    """What the promise takes from the authors of plug-ins' readers."""
    return [BY_PLUGIN.format(which=which, **origin) for which, origin in plan.readers.items()]


def readers_in_identity(plan: Plan) -> dict[str, str]:
    """Plug-ins' readers by dotted key, because another version may read other records."""
    return {f"{which}.third_party.{key}": text for which, origin in plan.readers.items() for key, text in origin.items()}


def records(plan: Plan) -> int:
    """The number of records, for computations. A text takes `shown_records`."""
    return int(plan.crosstab.count.sum())


def shown_records(job: Job, crosstab: Crosstab) -> int | None:
    """The number of records, as a text may state it or depend on it; None where the job keeps sizes confidential."""
    return None if job.sizes_secret else int(crosstab.count.sum())


def records_text(plan: Plan) -> str:
    """The number of records as text, where the job does not keep it secret."""
    number = shown_records(plan.job, plan.crosstab)
    return SIZES_SECRET if number is None else f"{number:,}, after applying the universe filter and the job's rules"


def sizes(plan: Plan) -> dict[str, str]:
    """Lines that follow from numbers of records, which are left out where the job keeps them secret."""
    if plan.job.sizes_secret:
        return {"blocks, memory": "not shown either, because they follow from the number of records"}
    job, crosstab, layout, count = plan.job, plan.crosstab, plan.layout, plan.crosstab.stratum_count
    needed, available = plan.largest_task_bytes / 2**20, int(plan.job.runtime.memory_per_worker) / 2**20
    store = f"{log_lik_bytes(crosstab, layout.draws) / 2**20:,.0f} MiB before compression"
    return {
        STRATA: f"{len(count):,} (from {int(count.min()):,} to {int(count.max()):,} records)" if len(count) > 1 else "1",
        "blocks": f"{len(layout.blocks):,}",
        MEMORY: f"{needed:,.0f} MiB at most, of {available:,.0f} MiB per worker",
        DRIVER: f"{plan.driver_bytes / 2**20:,.0f} MiB",
        **({"log-likelihood store": store if layout.log_lik else "not kept"} if job.model is not None else {}),
        **time(plan),
    }


def time(plan: Plan) -> dict[str, str]:
    """Lines on a run's time, if its model knows it, and on how it solves a system of equations; else empty."""
    if plan.cost is None:
        return {}
    alone, two = plan.cost.seconds, plan.cost.seconds - plan.cost.shared / 2
    error = "often much less" if supports(plan.model, "with_donors") else "within a factor of 2"
    solver = {"estimation": plan.cost.solver} if plan.cost.solver else {}
    return {"time": f"about {rounded(alone)} s on one worker, {rounded(two)} s on two ({error})"} | solver


def rounded(seconds: float) -> str:
    """Seconds to two digits."""
    return f"{float(f'{seconds:.2g}'):,.0f}"


def design(plan: Plan) -> Iterator[str]:
    """States the design that direct standard errors assume, and which parts of it published standard errors include."""
    survey = plan.job.survey
    if (weights := survey.replicate_weights) is not None:
        names = replicates(plan.job, plan.source.columns)
        yield f"standard errors of direct estimates: from {weights.number:,} replicate weights ({names[0]} to {names[-1]})"
    else:
        units = "every record is its own PSU" if survey.psu is None else f"PSUs (column {survey.psu})"
        columns = adjacency.listed(survey.design_strata)
        strata = f"within design strata (by {columns})" if columns else "without design strata"
        finite = "with finite population corrections" if survey.fpc else "with replacement"
        yield f"standard errors of direct estimates assume: {units}, sampled {finite} {strata}"
    if plan.job.local:
        return
    effects = plan.design.effects if plan.design is not None else survey.stated_effects
    of_reference = "that the earlier release states" if plan.job.carries else "of the reference"
    source = of_reference if plan.design is not None else "that the job states"
    if effects:
        yield (
            "published standard errors assume that records were sampled within design strata; sampling variances are "
            f"multiplied by the design effects {source}"
        )
        yield "design effects: " + "; ".join(effect.in_words for effect in effects)
    elif survey.clustered:
        yield (
            "published standard errors are too small, because they ignore the clusters within design strata (see cautions)"
        )
    else:
        yield "published standard errors assume the same design"
    if plan.design is not None:
        yield from plan.design.in_words()


def first_stage(job: Job) -> dict[str, str]:
    """A line on the noisy histograms in place of a reference, if the job pays for them; else empty."""
    if not job.epsilon.histograms:
        return {}
    cost, remaining = (budget_text(epsilon) for epsilon in (job.epsilon.histograms, job.epsilon.tables))
    how = "each cell gets the clipping limits with the smallest predicted error, which can be the public bounds"
    return {"reference": f"none; noisy histograms take {cost} of epsilon and leave {remaining}: {how}"}


def reference(plan: Plan, opened: ReferenceFile | ReferenceRelease) -> str:
    """A line on the reference's size."""
    text = f"{opened.records:,} records"
    if opened.left_out:
        text += f", of which {opened.left_out:,} "
        if plan.job.mechanism.sets == "copied":
            text += (
                "have combinations of columns that the file lacks: they are used for the prediction, but give no "
                "synthetic record"
            )
        else:
            text += "are left out, because the file has no record with the same columns"
    if isinstance(opened, ReferenceRelease) and isinstance(guarantee := plan.promise.total, Strict | Concentrated):
        periods, losses = len(opened.carried.links) + 1, chain_losses(opened, guarantee)
        loss = claims.loss_text(losses["epsilon"], losses.get("delta"))
        all_periods = f"{'both' if periods == 2 else f'all {periods}'} periods of the chain"
        text += f"; for a person who is in the files of {all_periods}, the total loss is at most {loss}"
    return text


def chain_losses(earlier: ReferenceRelease, guarantee: Strict | Concentrated) -> dict[str, Fraction]:
    """The losses of a person in all files of the chain, with this release's, by the names that `composed` gives them."""
    delta = guarantee.delta_text or "0"
    this = Costs.model_validate({"adjacency": guarantee.adjacency, **guarantee.losses, "delta": delta})
    return composed([*earlier.carried.links, this])


def hierarchies(plan: Plan) -> dict[str, str]:
    """A line on hierarchies, each with the numbers of levels; empty if there are none."""
    levels = plan.crosstab.levels
    nested = [
        f"{nesting.name}: " + " > ".join(f"{name} ({len(levels[name]):,})" for name in nesting.columns)
        for nesting in plan.nestings
    ]
    unused = (
        "" if plan.job.mechanism.uses("hierarchies") else f"; checked, but '{plan.job.mechanism.name}' does not use them"
    )
    return {"hierarchies": "; ".join(nested) + unused} if nested else {}


# The noise of counts is exact: a count over k noisy sums has the noise of k sums. Its ratio to direct standard errors
# depends on the variation of weights, which no bound shows. `quality.predicted` predicts this ratio from public records.
class TableNoise(NamedTuple):
    """The noise of a table's counts: smallest and largest standard deviation, where the largest is, and hidden cells.

    A hidden count may be 0 or not, whatever its noisy figure, even if all its weights are at their bound.
    """

    table: str
    smallest: float
    largest: float
    where: tuple[str, ...]
    cells: int
    hidden: list[tuple[str, ...]]


def noise_of_counts(plan: Plan) -> list[TableNoise]:
    """The noise of every table's counts; empty if it does not follow from public facts, or sizes are secret."""
    job, crosstab, model = plan.job, plan.crosstab, plan.model
    if not supports(model, "noise_of_count") or job.sizes_secret or not job.strict or model.noise_of_count is None:
        return []
    deviation, most = model.noise_of_count
    base, noises = crosstab.group(job.cell_columns)[0], []
    for table in job.tables:
        if not any(statistic.name == "count" for statistic in table.statistics):
            continue
        cells = table.cells(crosstab)
        records, inside = cells.membership @ crosstab.count.astype(float), cells.membership.tocoo()
        pairs = np.unique(np.column_stack([inside.row, base[inside.col]])[crosstab.count[inside.col] > 0], axis=0)
        added = np.ones(len(cells)) if job.mechanism.sets == "none" else np.bincount(pairs[:, 0], minlength=len(cells))
        noise, filled = deviation * np.sqrt(added), np.flatnonzero(records > 0)
        if len(filled):
            largest = filled[np.argmax(noise[filled])]
            hidden = [cells.labels[k] for k in filled if most * records[k] < NORMAL_90 * noise[k]]
            ends = float(noise[filled].min()), float(noise[largest])
            noises.append(TableNoise(table.name, *ends, cells.labels[largest], len(filled), hidden))
    return noises


def in_words(plan: Plan) -> Iterator[str]:
    """Yields lines of a plan: the noise of counts, and the counts that it hides."""
    for noise in noise_of_counts(plan):
        yield (
            f"{noise.table}, count: noise has a standard deviation of {noise.smallest:,.0f} to {noise.largest:,.0f} "
            f"({', '.join(noise.where)}), in the unit of the weight"
        )
    yield from map(str, hidden(plan))


def hidden(plan: Plan) -> Iterator[Caution]:
    """Yields cautions on tables with counts that noise certainly hides."""
    for noise in noise_of_counts(plan):
        if noise.hidden:
            yield Caution.of(
                "hidden_counts",
                table=noise.table,
                hidden=f"{len(noise.hidden):,}",
                cells=f"{noise.cells:,}",
                names=counted_and_named(noise.hidden),
            )
