"""How to read a study's measures, in the words of its page."""

from __future__ import annotations

from collections.abc import Mapping

from dpdist.studies.kinds.chains_settings import Chaining, late
from dpdist.studies.kinds.files_settings import Filed
from dpdist.studies.kinds.tables_settings import STATISTICS, YARDSTICKS, scale, sizes_of
from dpdist.studies.settings import WORST_LOSS, Study

SIMULATED = (
    "from simulated data or spaces with seeded NumPy randomness. Nothing here comes from a respondent, and nothing here is "
    "a release."
)
RELEASES = (
    "from {}: what is compared with direct estimates tells of these files' records, and may be shown because the "
    "files are public. Of files that are not, errors like these stay in a workspace's confidential folder."
)
OF_POPULATIONS = "from real releases of samples from simulated populations. Nothing here comes from a respondent."
RATIO = (
    "Root mean squared error against the truth over replicates, cell by cell, over the yardstick's; means and standard "
    "deviations here are over the 27 cells. Below 1 the synthetic table is the better one."
)
COVERED = (
    "Nominal .90, with the standard errors that a release publishes (direct estimates: Taylor, t); the mean over "
    "replicates has a Monte Carlo error of the sd over √R. Over "
)
MARGINS = "the 11 margins, where it hardly matters that the model has no interaction of field and sex."
ALONE = (
    "Nominal .90, by the combining rule for who analyses the synthetic sets without the published errors: with one set W "
    "alone, without the spread between sets; never with the bias of the privacy weights."
)
READINGS: Mapping[str, str] = {
    "database_bound": "Δ, the largest weighted record bound max |α_i f_i(θ_s)| over records and draws of the final fit; "
    "for clamped mechanisms the largest clamped value. ε = 2Δ is local to the file unless the mechanism is strict.",
    "unweighted_database_bound": "Δ of the fit without weights, where each weight search starts.",
    "epsilon_local": "2Δ (zero_out).",
    "epsilon_local_range": "Largest max_s α_i f_i − min_s α_i f_i: the cost of switching one record off, weights frozen.",
    "records_censored": "Records with |α_i f_i| over the clamp in any draw (censor_w, censor_uw); records whose weight was "
    "set to 0 (weighted_e).",
    "privacy_weight": "Mean of α over records: the share of the likelihood that is left.",
    "record_bound_before": "Mean over records of F, the record bound under the unweighted fit.",
    "record_bound_after": "Mean over records of the weighted record bound under the final fit.",
    "max_ecdf": "Largest absolute difference between the distribution functions of data and synthetic records, over the "
    "pooled 2n points. Two samples from one law differ by about 1.2/√n on average (.027 at n = 2000).",
    "avg_ecdf": "Mean squared difference over the pooled 2n points.",
    "mean": "Mean of the synthetic records; its 95 % interval is mean ± 1.96 s/√n within a set.",
    "median": "Median (interpolated order statistics); its interval is a pair of order statistics, see below.",
    "q15": "15th percentile; interval as for the median.",
    "q90": "90th percentile; interval as for the median.",
    WORST_LOSS: "Largest |log p(θ | D) − log p(θ | D′)| over all neighbouring files D, D′ and all θ, over the promised ε: "
    "at most 1 where the promise is kept.",
    "fits": "Posterior fits that a run took, the unweighted one included.",
    **{f"{name}_ratio_{other}": RATIO for name in STATISTICS for other in YARDSTICKS},
    **{f"{name}_coverage": COVERED + "all 27 cells." for name in STATISTICS},
    **{f"{name}_coverage_margins": COVERED + MARGINS for name in STATISTICS},
    **{f"{name}_coverage_sets": ALONE for name in STATISTICS},
    **{
        f"{name}_bias_direct": "|Mean error over replicates| over the direct estimate's RMSE, cell by cell; without bias "
        "it is about .8/√R times the ratio of RMSEs."
        for name in STATISTICS
    },
}
INTERVALS = (
    "Intervals are nominal 95 % within one data set, averaged over synthetic sets and then over replicates: for the mean "
    "mean ± 1.96 s/√n; for a quantile the order statistics whose ranks are the 2.5 % and 97.5 % points of Binomial(n, p). "
    "They treat synthetic records as if they were data and take no account of the draw of θ."
)
WITHOUT = (
    "Where cells are no design strata, a count's holds the chance in the number of the cell's records, which is released.",
    "The number of a cell's records is released, and its chance is left out: base cells are strata.",
)
SIZES = {
    f"{name}_{last}{size}": f"|published − direct estimate| over the direct estimate's standard error {scale(size)}, "
    f"{'largest' if size.endswith('max') else 'median'} over cells and margins{whose}. {WITHOUT[size.startswith('given_')]}"
    for name in STATISTICS
    for size in sizes_of(name)
    for last, whose in (
        ("", "; of a chain, the mean over its releases"),
        ("last_", ", of the chain's last release"),
        ("late_", ", mean over the chain's last quarter"),
    )
}
CHAIN_EPSILON = {"chain_epsilon": "The sum of all releases' ε, by adaptive composition: what a person in all files loses."}
OF_FILES: Mapping[str, str] = {
    **SIZES,
    **CHAIN_EPSILON,
    **{
        f"{name}_ratio_direct": "Root mean squared error about the file's or population's figures over replicates, cell by "
        "cell, over the direct estimate's; means and standard deviations here are over cells and margins."
        for name in STATISTICS
    },
    **{
        f"{name}_coverage": "Nominal .90, with the standard errors that the release publishes: share of cells and margins "
        "whose interval holds the figure of the whole file or population (of counts of `samples`, a sample's part of it)."
        for name in STATISTICS
    },
    **{
        f"{name}_cell_coverage": "Nominal .90: share of replicates whose interval holds the population's figure, cell by "
        "cell; means and standard deviations here are over cells and margins."
        for name in STATISTICS
    },
    **{
        f"{name}_grand": "|Published figure of all records − the population's|, in published standard errors."
        for name in STATISTICS
    },
}
OF_CHAINS: Mapping[str, str] = {
    **SIZES,
    **CHAIN_EPSILON,
    **{
        measure: "Nominal .90, with the standard errors that the release publishes: share of the 27 cells whose interval "
        f"holds the population's figure, mean over the {when}."
        for name in STATISTICS
        for measure, when in ((f"{name}_coverage", "chain"), (late(f"{name}_coverage"), "chain's last quarter"))
    },
}


def reading(study: Study, measure: str) -> str:
    """How a measure of a study is read; nothing where its title says it."""
    known = OF_FILES if isinstance(study, Filed) else OF_CHAINS if isinstance(study, Chaining) else READINGS
    return known.get(measure, "")
