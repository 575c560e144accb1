"""Texts on standard errors: which errors they include, and which they leave out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from dpdist.core.cautions import Caution
from dpdist.job import DesignEffect, Job, family_facts
from dpdist.mechanisms.parts import words_of
from dpdist.models.laws import can_refit, has_laws
from dpdist.models.protocol import supports
from dpdist.publish.released import ReleasedObject

SEARCH_AGAIN = (
    "Estimates from the released parameters (estimator `parameters`): the variance has four components: the variation in "
    "the sample's composition by x (predictors, strata and table columns), the sampling error of the weighted fit (or of "
    "the unweighted fit, if that is larger), the variance between draws divided by the number of sets m, and the squared "
    "bias of the privacy weights. The privacy weights downweight the tails of the distribution, and the estimates are "
    "not corrected for this.{} All components except the first are estimated by repeating the search for privacy weights "
    "on a synthetic sample. This sample is drawn from a distribution that corrects, to first order, for the "
    "downweighting of the tails."
)
TRIMMED = {"lognormal": " Under the lognormal model, counts are a few per cent too low and means a few per cent too high."}
"""What the trimming of tails does to estimates, by family."""
SYNTHESIS_ADDED = (
    "Estimates from the synthetic records (estimator `records`): the variance of estimator `parameters`, plus the "
    "variance of the synthetic records given x, divided by m. An analysis of the synthetic sets alone uses T = B/m + W, "
    "which leaves out the bias and, with one set, the spread between sets."
)
BETWEEN_AND_WITHIN = (
    "Estimates from the synthetic records (estimator `records`): the variance is T = B/m + W over m sets. W is computed "
    "by linearisation, with records as units within design strata. T does not include the bias of the privacy weights, "
    "which downweight the tails of the distribution."
)
ONE_SET = "With one synthetic set, T = W leaves out the spread between sets and is too small."
SKEWED = (
    "Confidence intervals for means and totals are symmetric. Those for counts are symmetric on the log scale. If the "
    "standard error exceeds the count, the interval is symmetric on the original scale and truncated at 0."
)
WITHIN_BOUNDS = (
    "Intervals of means stay within the outcome's public bounds. Intervals of counts, and of totals of non-negative "
    "outcomes, do not go below 0."
)
SEARCH_STANDS_IN = (
    "Privacy weights were fixed on the reference. To compute these errors, they are replaced with weights from a search "
    "on a synthetic sample."
)
BORROWED = (
    "These errors include the reference's own sampling error, except where the fit replaces the reference's "
    "distributions. The effect of privacy weights on the fit is estimated from the reference and corrected for. The errors "
    "include neither the bias of privacy weights nor changes of shape since the reference that the model cannot follow."
)
BETWEEN_SETS = (
    "Estimates from the released parameters (estimator `parameters`): the variance from the sample's composition by x "
    "(predictors, strata and table columns), plus (1 + 1/m) times the variance between the m released draws. Released "
    "draws spread at least as widely as the fit's sampling error; with one set, there is no variance between draws. The "
    "variance does not include the bias of the privacy weights, which downweight the tails of the distribution; in large "
    "strata this bias is the larger error."
)

FURTHER = [
    (
        "For ratios, proportions, shares and differences, the same components are combined by linearisation, including "
        "their covariances."
    ),
    "Intervals for quantiles are Woodruff intervals, based on the weighted share of records below the quantile. If the "
    "shape of the distribution is taken from a reference, its sampling error (given the mean) is included, but a change "
    "in shape since then is not.",
]
"""Texts on the errors of ratios, proportions, shares, differences and quantiles."""


def _of_parameters(released: ReleasedObject) -> list[str]:
    if released.job.mechanism.adds_noise:
        return [words_of(released.job).errors_of(released)]
    model = released.model(0)
    if not supports(model, "expect"):
        return []
    searched = can_refit(model) and not released.job.mechanism.clamps
    if not searched:
        return [BETWEEN_SETS]
    search_again = SEARCH_AGAIN.format(TRIMMED.get(str(released.job.likelihood.family), ""))
    return [search_again, SEARCH_STANDS_IN] if released.job.frozen else [search_again]


def standard_errors(released: ReleasedObject) -> list[str]:
    """The statement's entries on standard errors, by key."""
    if released.job.mechanism.sets == "none":
        return [*_of_parameters(released), *([] if released.job.local else [WITHIN_BOUNDS, *_design(released)])]
    job, simulated, sets_are_free = (
        released.job,
        has_laws(released.job, released.model(0)),
        released.job.mechanism.sets == "drawn",
    )
    texts = [
        *_of_parameters(released),
        words_of(job).errors_of_records or (SYNTHESIS_ADDED if simulated else BETWEEN_AND_WITHIN),
        SKEWED,
        *([WITHIN_BOUNDS] if job.mechanism.adds_noise else []),
        "Intervals have a nominal coverage of 90 % under the model. They do not allow for misspecification of the model.",
    ]
    if family_facts(job).on_reference:
        texts.append(BORROWED)
    if job.mechanism.clamps:
        texts.append("Standard errors do not include the bias of the clamp, which may be larger than they are.")
    if job.likelihood.synthesis == "fbp" and not simulated:
        texts.append(
            "Estimates from the synthetic records (estimator `records`): under fbp, standard errors are at least those "
            "of `parameters`; given x, its weights do not vary."
        )
    if job.likelihood.synthetic_weights == "expected" and not simulated:
        texts.append(
            "Estimates from the synthetic records (estimator `records`): with expected weights, standard errors are at "
            "least those of `parameters`; given y and x, w does not vary."
        )
    if job.rake:
        texts.append(
            "Raked estimates have the errors of their residuals from a regression on the margins; a raked total has "
            "no error."
        )
    texts += FURTHER if not job.plain else []
    return [
        *texts,
        *_design(released),
        *([ONE_SET] if job.synthetic_sets == 1 and not (simulated or sets_are_free) else []),
    ]


def _design(released: ReleasedObject) -> list[str]:
    return design_in_words(released.job, released.design_effects)


def design_left_out(job: Job) -> Iterator[Caution]:
    """Yields a caution if the survey design makes intervals too narrow and the job states no design effect."""
    survey = job.survey
    if job.local or survey.design_effect is not None or not survey.clustered:
        return
    of_reference = job.reference is not None and job.reference.file is not None
    effect = "reference, which estimates it from the reference" if of_reference else "a public figure"
    design = f"clustering by {survey.psu}" if survey.psu else "the design behind the replicate weights"
    yield Caution.of("design_left_out", design=design, effect=effect)


def design_in_words(job: Job, effects: Sequence[DesignEffect]) -> list[str]:
    """Texts on the survey design: the part that public design effects bring into standard errors, and the missing part."""
    texts = list[str]()
    if len(effects) == 1 and effects[0] == DesignEffect(effect=effects[0].effect):
        texts.append(
            f"Sampling variances of all figures are multiplied by the public design effect {effects[0].effect:g} that is "
            "given in the job; the variance of the privacy noise is not."
        )
    elif effects:
        beginning = " with which the chain began" if job.carries else ""
        whose = (
            f"were estimated from the reference{beginning}" if job.survey.effects_of_reference else "are given in the job"
        )
        listed = "; ".join(effect.in_words for effect in effects)
        texts.append(
            f"Sampling variances are multiplied by public design effects, which {whose}: {listed}. Each figure uses the "
            "first of these that fits its statistic and columns. The variance of the privacy noise is not multiplied."
        )
    elif job.survey.psu:
        texts.append(f"The model ignores clustering by {job.survey.psu}, so these standard errors are too small.")
    elif job.survey.replicate_weights is not None:
        texts.append("The model ignores the design that the replicate weights represent, and so do these standard errors.")
    if effects and (uncovered := _without_effect(job, effects)):
        texts.append(f"No design effect is known for {', '.join(uncovered)}: their standard errors ignore clustering.")
    if job.survey.fpc:
        texts.append("Standard errors have no finite population correction.")
    return texts


def _without_effect(job: Job, effects: Sequence[DesignEffect]) -> list[str]:
    figures = list[str]()
    for table in job.tables:
        sizes = range(len(table.by) + 1) if table.margins else [len(table.by)]
        crossed = [frozenset(columns) for size in sizes for columns in combinations(table.by, size)]
        for statistic in table.statistics:
            base = statistic.of or statistic
            uncovered = [
                names for names in crossed if not any(effect.fits(names, base.name, base.variable) for effect in effects)
            ]
            cells = "" if len(uncovered) == len(crossed) else f" in some of {table.name}"
            figures += [f"{statistic.text}{cells}"] if uncovered else []
    return list(dict.fromkeys(figures))
