"""The score model of weight and outcome: normal laws for scores under a reference's distributions; what it expects.

METHODS §5b defines the scores z_w and z_y, and the model: z_w ~ N(μ, τ²) and z_y ~ N(b(z_w)'β, σ²), where b is a spline.

The log likelihood f_i is the log density less the log density under the reference's own fit θ_ref. It is a fixed
function of the record and its two uniforms, which depend only on the record's number. METHODS §5b subtracts log φ(z_w)
+ log φ(z_y) instead; f then includes the dependence of y on w.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import Key, open_uniforms, uniforms_of
from dpdist.core.records import Codes, Crosstab, Floats, Ints, quotient_or
from dpdist.estimation.estimators import group_sums
from dpdist.job import Column, Job
from dpdist.models.copula import normal_scores
from dpdist.models.copula.marginal import BASIS, BINS, INTERVALS, KNOTS, SplinePrior, basis, products
from dpdist.models.copula.normal_scores import PARTS, FittedScores, Kind, ScoredRecords, law_of, part_of, relative
from dpdist.models.copula.reference_summary import SHAPES, Facts, Law, tell
from dpdist.models.copula.shapes import FEWEST_UNMIXED, UNIT, PredictorCells, grouped, weight_outcome_ties
from dpdist.models.numerics import tiles
from dpdist.models.numerics.tiles import by_pattern, tile_records
from dpdist.models.protocol import Draws, Extremes, Parameter, StratumModel
from dpdist.models.public_model import strata_as_predictors

# Scores are cut into narrow bins. Within a bin, the weight w and the outcome y are replaced by their means under the
# reference's own law. This is exact for that law. For another law the error is of the order of the squared bin width
# (METHODS §5b).
DRAWS = 64
"""Number of draws that are computed together, so that their products of bins take only some megabytes."""


def expectations(facts: Facts, law: Law, kind: Kind, bounds: tuple[float, float]) -> tuple[Floats, Floats]:
    """E(w) and E(wy) of every cell, (draw, cell) each, with outcomes clipped to `bounds`."""
    draws, cells = law.share.shape
    weight, product = np.empty((draws, cells)), np.empty((draws, cells))
    for cell in range(cells):
        bins = facts.bins[cell]
        for low in range(0, draws, DRAWS):
            rows = slice(low, low + DRAWS)
            share = law.share[rows, cell]
            chances = [_chances(law.mean[rows, cell, part], law.sd[rows, cell, part], bins.edges) for part in range(2)]
            ones = chances[1] * bins.of_rest
            weight[rows, cell] = share * ones.sum(axis=1) + (1.0 - share) * (chances[0] @ bins.of_zeros)
            if kind == "binary":
                product[rows, cell] = share * ones.sum(axis=1)
                continue
            located = facts.untied[cell] * (law.slopes[rows, cell] @ bins.splines.T) + facts.tie[cell] * bins.splines[:, 1]
            residual = facts.untied[cell] * law.residual[rows, cell]
            moments = np.empty_like(located)
            for k, values in bins.means.items():
                inside = bins.outcome == k
                moments[:, inside] = _mean(np.clip(values, *bounds), located[:, inside], residual)
            product[rows, cell] = share * (ones * moments).sum(axis=1)
    return weight, product


def _chances(mean: Floats, sd: Floats, edges: Floats) -> Floats:
    """Probability of every bin under N(mean, sd²), (draw, bin); the outermost bins include the tails."""
    below = scipy.special.ndtr((edges[1:-1] - mean[:, None]) / sd[:, None])
    return np.diff(below, prepend=0.0, append=1.0, axis=1)


def _mean(values: Floats, located: Floats, sd: Floats) -> Floats:
    """Mean of an outcome whose score follows N(located, sd²), (draw, …); `values` (bin,) are its means in BINS."""
    below = scipy.special.ndtr((BINS[1:-1] - located[..., None]) / sd[:, None, None])
    return np.asarray(values[-1] - below @ np.diff(values))


def borrowed(facts: Facts, law: Law, scored: ScoredRecords, records: Records, share: Floats) -> Floats:
    """Covariance of errors of (E w, E wy) by the sampling of the reference, (cell, 2, 2).

    `share` (cell,) is the cell's share of its unit's records: only this share of the fit follows from them. `records`
    of the current file have the scores `scored`.
    """
    # A record's influence on an efficient estimate is that on the direct estimate, projected on the statistics of the fit.
    # The current records determine this projection; the remainder comes from the reference's own records.
    pairs = np.column_stack([records.weight, records.weight * records.outcome])
    covariance = np.zeros((len(share), 2, 2))
    for rows, cell in by_pattern(scored.cell):
        z_w, z_y, part = scored.weight[rows], scored.outcome[rows], scored.part[rows].astype(np.float64)
        splines = basis(z_w)
        residual = part * (z_y - splines @ law.slopes[0, cell])
        statistics = [(1.0 - part) * z_w, (1.0 - part) * z_w**2, part * z_w, part * z_w**2, residual**2]
        functions = np.column_stack([np.ones(len(rows)), part, *statistics, residual[:, None] * splines])
        coefficients = np.linalg.lstsq(functions, pairs[rows], rcond=1e-8)[0]
        coefficients[2:] *= share[cell]
        residuals = pairs[rows] - functions @ coefficients
        residuals -= residuals.mean(axis=0)
        covariance[cell] = residuals.T @ residuals / len(rows) / float(facts.effective[cell])
    return covariance


def shares(count: Ints, unit: Ints) -> Floats:
    """Each cell's share of the records of its unit, (cell,); a unit is a set of cells that share a fit."""
    return np.asarray(count / np.bincount(unit, weights=count)[unit])


# Scores are not exactly normal about their regression. So mean outcomes under the fit differ a little from the reference's
# weighted means. A shift of the intercept of each cell's regression reduces the difference.
LARGEST_SCORE_SHIFT, HALVINGS = 4.0, 40
"""Largest shift, and number of bisection steps that find a shift.

A shift is in units of the outcome's score, or of the share's logit for a yes-or-no outcome.
"""
STEP = 0.01
"""Step of the numerical derivative of a mean outcome, in units of the outcome's score."""
PRIOR = 0.03
"""Prior standard deviation of a shift, in units of the outcome's score; in six surveys it was 0 to .03."""


def shifted(law: Law, kind: Kind, by: Floats) -> Law:
    """The law with a shift, `by` (cell,), added to the intercept of each cell's regression of outcomes.

    For a yes-or-no outcome the shift is added to the logit of the cell's share.
    """
    if kind == "binary":
        return law._replace(share=scipy.special.expit(scipy.special.logit(law.share) + by))
    slopes = law.slopes.copy()
    slopes[:, :, 0] += by
    return law._replace(slopes=slopes)


def shifts(facts: Facts, law: Law, kind: Kind, bounds: tuple[float, float], means: Floats, group: Ints) -> Floats:
    """Finds the shift of every cell, (cell,), that gives the law of the first draw the requested mean outcomes.

    `means` (group,) are the requested means, and `group` (cell,) is the number of each cell's group. A group's mean
    weights cells by their numbers of reference records. If no shift gives a mean, the nearest possible mean is taken.
    """
    low, high = np.full(len(means), -LARGEST_SCORE_SHIFT), np.full(len(means), LARGEST_SCORE_SHIFT)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        below = _means(facts, law, kind, bounds, middle[group], group)[0] < means
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high)[group] / 2.0)


def misfit(facts: Facts, fits: Law, kind: Kind, bounds: tuple[float, float], sums: Floats, prior: float = PRIOR) -> Law:
    """Estimates the shifts that give a law fitted to a file like the reference the file's weighted mean outcomes.

    The result is a law of one draw that holds only the shifts, on the scales of `Law.free`; 0 for a yes-or-no outcome.
    The first draw of `fits` (draw, …) is the fit to all reference records; each other draw leaves out a group of
    records. `sums` (draw, cell, 2) are Σw and Σwy of the same records. Cells that share a distribution of outcomes
    share a shift. `prior` is the standard deviation of a shift around the mean of all. A cell has no shift if fewer
    than FEWEST_UNMIXED records follow its distribution, or if no shift gives the mean.
    """
    # Without shifts, the median error of a cell's mean was a third of its direct standard error in a large file.
    # But one record with a large weight can dominate a shift. So each is shrunk towards their common value m, under a prior
    # N(m, prior²) and the jackknife's variance: a law that errs in one cell mostly errs in the same direction in others.
    cells = sums.shape[1]
    none = Law.nothing(cells)
    if kind == "binary":
        return none
    distributions, group = np.unique(facts.of_outcome, axis=0, return_inverse=True)
    group = group.reshape(-1)
    member = (group[:, None] == np.arange(len(distributions))).astype(np.float64)
    records, totals = facts.records @ member, np.einsum("dcj,cg->dgj", sums, member)
    means = quotient_or(0.0, totals[..., 1], totals[..., 0])
    overall = Law(*(values[:1] for values in fits))

    def reached(law: Law, by: Floats) -> Floats:
        return _means(facts, law, kind, bounds, by, group)

    lowest, highest = (reached(overall, np.full(cells, end))[0] for end in (-LARGEST_SCORE_SHIFT, LARGEST_SCORE_SHIFT))
    told_of = (records >= FEWEST_UNMIXED) & (lowest < means[0]) & (means[0] < highest)
    by = shifts(facts, overall, kind, bounds, means[0], group)
    slope = np.subtract(*(reached(overall, by + step)[0] for step in (STEP, -STEP))) / (2.0 * STEP)
    away = np.divide(
        means[1:] - reached(Law(*(values[1:] for values in fits)), by), slope, where=told_of, out=0.0 * means[1:]
    )
    variance = (len(away) - 1) * away.var(axis=0)
    of_groups = np.array([by[group == number][0] for number in range(len(distributions))])
    common = _common(of_groups, away, np.where(told_of, 1.0 / (prior**2 + variance), 0.0))
    shrinkage = 1.0 / (1.0 + variance / prior**2)
    return shifted(none, kind, np.where(told_of, common + shrinkage * (of_groups - common), 0.0)[group])


def _common(by: Floats, away: Floats, precision: Floats) -> float:
    """The shift that all groups have in common, shrunk towards 0 for its sampling error (James & Stein).

    `by` (group,) are the shifts of groups of cells. `away` (draw, group) are their changes if records are left out.
    """
    if not precision.sum() > 0.0:
        return 0.0
    share = precision / precision.sum()
    mean, variance = float(share @ by), (len(away) - 1) * float((away @ share).var())
    return mean * max(0.0, 1.0 - variance / mean**2) if mean else 0.0


def _means(facts: Facts, law: Law, kind: Kind, bounds: tuple[float, float], by: Floats, group: Ints) -> Floats:
    """Weighted mean outcomes of groups of cells, (draw, group), under a law whose cells are shifted by `by` (cell,)."""
    positive = law._replace(share=np.ones_like(law.share)) if kind == "positive" else law
    weight, product = expectations(facts, shifted(positive, kind, by), kind, bounds)
    of_group = (group[:, None] == np.arange(int(group.max()) + 1)) * facts.records[:, None]
    total, outcome = weight @ of_group, product @ of_group
    return quotient_or(0.0, outcome, total)


GROUPS = 20
"""Number of groups of reference records that are left out in turn, for the jackknife error of the bias correction."""
ROUNDING = 32.0 * float(np.finfo(float).eps)
"""Relative error allowed for a sum of six products whose coefficients are sums of up to six terms."""


@dataclass(frozen=True, eq=False)
class Scores(StratumModel):
    """The score model of one stratum; its statistics are (cell, LEADING + INTERVALS·TERMS).

    Most methods need the reference's `facts`.
    """

    cells: PredictorCells
    kind: Kind
    outcome_bounds: tuple[float, float]
    facts: Facts | None = None

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> Scores:
        predictors = (*strata_as_predictors(job, crosstab), *job.likelihood_predictors)
        return cls(
            PredictorCells.of(crosstab, predictors, rows),
            kind_of(job.outcome_column),
            job.outcome_column.ends,
        )

    def within(self, facts: Facts) -> Scores:
        return replace(self, facts=facts)

    def summarise(self, records: Records, key: Key) -> Facts:
        """The facts of a reference's records, with the records' own fit as the prior."""
        cell, part = self.cells.cell(records.row), part_of(records.outcome, self.kind)
        summary = tell(self.cells, cell, part, records.weight, records.outcome, self.kind == "binary", key)
        model = self.within(summary)
        if self.kind != "binary":
            scored, ones = model.scored(records), part == 1
            tie = weight_outcome_ties(
                cell[ones].astype(np.int64), scored.weight[ones], scored.outcome[ones], model.units[0]
            )
            model = self.within(replace(summary, tie=tie))
        return model.fitted_to(records)

    def fitted_to(self, records: Records) -> Facts:
        """The facts, with the fit to a reference's records as the prior."""
        fit = self._fitted(self.statistics(records, np.ones(len(records))))
        return replace(
            self.reference_facts,
            weight=SplinePrior(fit.weight.location[fit.of_weight], fit.weight.variance[fit.of_weight]),
            outcome=SplinePrior(fit.outcome.location[fit.of_outcome], fit.outcome.variance[fit.of_outcome]),
        )

    def bias_corrected(self, records: Records, prior: float = PRIOR) -> Facts:
        """The facts with a bias correction: fits to files like the reference then have its weighted means.

        Such files have as many records as the current file. The correction covers the misfit of the law and shrinkage
        towards the prior. `prior` is the prior standard deviation of a shift (`bias_correction.PRIOR`).
        """
        scored, effective_sizes = self.scored(records), self._effective_sizes(records)
        figures = (records.weight, records.weight * records.outcome)
        group = (GROUPS * uniforms_of(self.reference_facts.key, "level", records.record)).astype(np.int64)
        statistics, sums = [], []
        for k in range(GROUPS):
            inside = group == k
            part = ScoredRecords(*(values[inside] for values in scored))
            statistics.append(normal_scores.sums(part, effective_sizes[inside], len(self.cells)))
            sums.append(np.column_stack([group_sums(part.cell, values[inside], len(self.cells)) for values in figures]))
        fitted = self._law(self.centre(_with_and_without(statistics)))
        shift = misfit(self.reference_facts, fitted, self.kind, self.outcome_bounds, _with_and_without(sums), prior)
        return self.reference_facts.with_weights_corrected(shift)

    def weights_corrected(self, records: Records, alpha: Floats) -> Facts:
        """The facts with a further correction, for the effect of privacy weights on the reference's fit."""
        effective_sizes = self._effective_sizes(records)
        centred = (
            self.centre(self.statistics(records, weights)[None]) for weights in (effective_sizes, effective_sizes * alpha)
        )
        unweighted, weighted = (self._law(draws).free() for draws in centred)
        return self.reference_facts.with_weights_corrected(unweighted.less(weighted))

    def _effective_sizes(self, records: Records) -> Floats:
        """Number of the current file's records per reference record, from the public sizes of the cells, (record,)."""
        cell = self.cells.cell(records.row)
        return (self.cells.count / np.maximum(1, np.bincount(cell, minlength=len(self.cells))))[cell]

    @property
    def reference_facts(self) -> Facts:
        assert self.facts is not None, "the model needs a reference"
        return self.facts

    @cached_property
    def units(self) -> tuple[Ints, Ints]:
        return self.cells.units(self.reference_facts.share)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        cell, parts = ("cell", self.cells.labels), ("part", PARTS[self.kind])
        slopes = ("term", ("(Intercept)", "score", *(f"score above {k:g}" for k in KNOTS)))
        entries = [] if self.kind == "positive" else [Parameter("share", (cell,))]
        entries += [Parameter("weight_mean", (cell, parts), "score"), Parameter("weight_sd", (cell, parts), "score")]
        if self.kind != "binary":
            entries += [Parameter("slopes", (cell, slopes), "score"), Parameter("residual_sd", (cell,), "score")]
        return tuple(entries)

    @property
    def identified(self) -> int:
        """The largest possible number of parameters: a cell's number times the possible number of units."""
        return (BASIS + 6) * (int(grouped(self.cells.codes, self.cells.count, UNIT).max()) + 1)

    def scored(self, records: Records) -> ScoredRecords:
        """Scores of records under the reference's distributions."""
        return normal_scores.scored(self.reference_facts, records, self.cells.cell(records.row), self.kind)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        on = alpha > 0
        return normal_scores.sums(self.scored(records.take(on)), alpha[on], len(self.cells))

    def scatter(self, records: Records, alpha: Floats) -> Floats:
        return normal_scores.covariance_of_sums(self.scored(records), alpha, len(self.cells))

    def centre(self, statistics: Floats) -> Draws:
        """Posterior means of p, μ and β with √(SS/ν), for several sets of `statistics` (set, cell, statistic)."""
        return self.draws_of(self._fitted(statistics).centre())

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        return self.draws_of(self._fitted(statistics).draw(self.kind, draws, rng))

    def log_lik(self, draws: Draws, records: Records) -> Floats:
        """Log likelihood minus the log likelihood under the reference's own fit, (draw, record)."""
        out = np.empty((len(draws), len(records)))
        for rows, features, table, _ in self._factors(draws, records):
            size = tile_records(len(draws))
            for low in range(0, len(rows), size):
                out[:, rows[low : low + size]] = table.T @ features[:, low : low + size]
        return out

    def extremes(self, draws: Draws, records: Records) -> Extremes:
        highest, lowest = np.empty(len(records)), np.empty(len(records))
        for rows, features, table, slack in self._factors(draws, records):
            high, low = tiles.extremes(features, table)
            highest[rows], lowest[rows] = high + slack, low - slack
        return Extremes(highest, lowest)

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Outcome and weight of synthetic records from the law of the sample: first the part, then weight, then outcome.

        Both lie in the reference's range, and outcomes also within their public bounds.
        """
        uniforms = open_uniforms(rng, (len(crosstab_row), 3))
        law = self._law(theta).plus(self.reference_facts.undone)
        outcome, weight = normal_scores.placed(
            self.reference_facts, law, self.cells.cell(crosstab_row), self.kind, uniforms
        )
        return np.clip(outcome, *self.outcome_bounds), weight

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        law = self._law(theta).plus(self.reference_facts.undone)
        weight, product = expectations(self.reference_facts, law, self.kind, self.outcome_bounds)
        return weight[:, self.cells.pattern], product[:, self.cells.pattern]

    def borrowed(self, theta: Draws, records: Records) -> Floats:
        """Covariance of the errors of (E w, E wy) from the sampling of the reference, by crosstab row, (row, 2, 2)."""
        share = shares(self.cells.count, self.units[0])
        covariance = borrowed(self.reference_facts, self._law(theta), self.scored(records), records, share)
        return covariance[self.cells.pattern]

    def borrowed_shapes(self) -> Iterator[tuple[str, int, Mapping[str, float]]]:
        """The name of every cell, its number of reference records, and their weight by distribution."""
        facts = self.reference_facts
        for cell, records, weights in zip(self.cells.names, facts.records, facts.own_share.tolist(), strict=True):
            yield cell, int(records), dict(zip(SHAPES, weights, strict=True))

    def as_sampled(self) -> Scores:
        return self

    def draws_of(self, law: Law) -> Draws:
        """The law's parameters as draws for all cells of the crosstab; NaN for cells of other strata."""
        parts = slice(2 - len(PARTS[self.kind]), 2)
        values = {"weight_mean": law.mean[:, :, parts], "weight_sd": law.sd[:, :, parts]}
        if self.kind != "positive":
            values = {"share": law.share, **values}
        if self.kind != "binary":
            values |= {"slopes": law.slopes, "residual_sd": law.residual}
        return Draws({name: self._spread(value) for name, value in values.items()})

    def _fitted(self, statistics: Floats) -> FittedScores:
        return FittedScores.of(statistics, self.reference_facts, self.units)

    def _spread(self, values: Floats) -> Floats:
        full = np.full((len(values), len(self.cells.labels), *values.shape[2:]), np.nan)
        full[:, self.cells.cell_numbers] = values
        return full

    def _law(self, draws: Draws) -> Law:
        """Parameters of the stratum's cells, from draws; constants replace parameters that the kind of outcome lacks."""
        in_stratum = {name: values[:, self.cells.cell_numbers] for name, values in draws.values.items()}
        size = (len(draws), len(self.cells))
        mean, sd = np.zeros((*size, 2)), np.ones((*size, 2))
        parts = slice(2 - len(PARTS[self.kind]), 2)
        mean[:, :, parts], sd[:, :, parts] = in_stratum["weight_mean"], in_stratum["weight_sd"]
        slopes = in_stratum.get("slopes", np.zeros((*size, BASIS)))
        return Law(in_stratum.get("share", np.ones(size)), mean, sd, slopes, in_stratum.get("residual_sd", np.ones(size)))

    def _factors(self, draws: Draws, records: Records) -> Iterator[tuple[Ints, Floats, Floats, Floats]]:
        """Yields the factors of log likelihoods, for every cell, part and interval of z_w.

        An item has the positions of the records, features (TERMS, record), the table (TERMS, draw), and a bound on the
        error of each record's values. The bound is proportional to the sizes of terms before cancellation.
        """
        reference, law, scored = law_of(self.reference_facts), self._law(draws), self.scored(records)
        terms = products(scored.outcome, scored.weight)
        for rows, number in by_pattern(scored.pattern.astype(np.int32)):
            cell, place = divmod(number, 1 + INTERVALS)
            table = relative(law, reference, cell, place, self.kind)
            features = np.ascontiguousarray(terms[:, rows])
            yield rows, features, table.values, ROUNDING * (table.magnitude @ np.abs(features))


def _with_and_without(parts: Sequence[Floats]) -> Floats:
    total = np.sum(parts, axis=0)
    return np.stack([total, *(total - part for part in parts)])


def kind_of(outcome: Column) -> Kind:
    """The kind of an outcome, from its public domain: yes or no, possibly 0, or never 0."""
    low, high = outcome.ends
    values = set((outcome.codes or {}).values())
    if values == {0.0, 1.0} or ((low, high) == (0.0, 1.0) and outcome.whole):
        return "binary"
    return "hurdle" if low <= 0.0 <= high and outcome.zeros != "drop" else "positive"
