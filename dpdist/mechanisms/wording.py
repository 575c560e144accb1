"""What statements say of mechanisms: what is assumed, what a bound rests on, what is in no figure."""

from __future__ import annotations

from dpdist.job import WeightRule
from dpdist.sampling.clamped import VARIATION

PUBLIC_X = (
    "predictors, strata, design strata, table columns and the number of sample records in each combination are public"
)
WEIGHTS_ARE_ATTRIBUTES = (
    "a record's sampling weight is taken as its own attribute: where weights were calibrated or adjusted for nonresponse "
    "from the same sample, one person moves others' weights, and no record-level claim covers that"
)
HALF_EXCEED = "exact leave-one-out losses with the weights computed anew exceeded ε on about half of the samples tried"
EXCEEDS: dict[WeightRule, str] = {
    "linear": f"with linear privacy weights, {HALF_EXCEED}",
    "cluster": (
        "with cluster privacy weights, 2 of 48 records left out of a simulated survey, with the weights computed anew, "
        "lost more than ε, up to 1.2 ε"
    ),
    "scalar": (
        "with scalar privacy weights one outlier moves every record's: with and without a record at 8 standard deviations, "
        "among 1,000, the log ratio of draws reached 155 at ε = 3.6; 3 of 48 records left out of a simulated survey lost "
        "more than ε, up to 2.7 ε"
    ),
    "inverse": (
        "with inverse privacy weights one outlier can move every record's: with and without a record at 25 standard "
        "deviations, among 1,000, the log ratio of draws reached 87 at ε = 3.6; one at 8 among 100 reached 16"
    ),
    "fixed_point": (
        "this release uses fixed-point privacy weights; in tests on other, simulated files with outliers a record's exact "
        "loss exceeded the observed bound in 17 of 516 strata, and reached 6.5 times ε where a tenth of a small stratum's "
        "records lay far off: `dpdist audit` measures it on this file"
    ),
}
"""What exact losses were found over ε, by weight rule: the release's own may be larger."""
UNMEASURED = (
    "what exact losses {} privacy weights have, computed anew with and without a record, was not measured on other files: "
    "`dpdist audit` measures it on this one"
)
"""Of a rule that `EXCEEDS` says nothing of."""
REWEIGHTED_EXCEEDS = f"with re-weighted privacy weights, {HALF_EXCEED}"
MISFIT = (
    "records are taken to have a {} law within cells: a real file may not, and tables and synthetic records can then be "
    "off by many standard errors; this bias is in no figure of the release; look at the evaluation (`dpdist report "
    "--confidential`) before publishing"
)
MOVES_COST = "a record that changes cells is not covered: public counts show it, and the noisy sums alone would cost {}"
MOVES_TWICE = MOVES_COST.format("up to twice the ε stated")
MOVES_EXCHANGED = MOVES_COST.format("no more than an exchange at the same x")
MOVES_UNKNOWN = (
    "a record that changes cells is not covered: public counts show it, and limits follow from them, so that no figure "
    "is claimed for the noisy sums"
)
USERS_PART = (
    "the user's program: its target is a log prior plus Σ alpha·log_lik, the prior is proper, and neither it nor "
    "transformed data that enter it use y, w or alpha",
    "the user's program: log_lik of a record depends on that record and the parameters alone, and a Python log_lik is the "
    "density that the program weighs",
    "the user's program: the rounding error of its log_lik is assumed, not known",
)
USERS_CLAMP = (
    "the user's program: its target weighs a record by exp(clamp(alpha(log_lik − reference), ±clamp)); where the job has a "
    "reference this was tried on its records, at some parameters"
)
FALLBACK_SHOWS = "whether the declared fallback was taken depends on the records and can be seen in the release"
REFUSAL_SHOWS = (
    "a bound over the target, or a fit that does not end, is refused (fallback: refuse): that this release was made at all "
    "depends on the records, and is in no ε"
)
NO_AMPLIFICATION = "no amplification by subsampling is claimed"
OBSERVED = "the bound is the one observed on this file over S posterior draws; it is not a bound over every file"
ON_THIS_FILE = "privacy weights are computed from the confidential file"
CLAMPED = (
    "every record's log factor lies within ±ε/2 (±ε/4 under substitution) of a set's ε, whatever the data are; [G] claims "
    "±ε/2 for substitution, which costs 2ε"
)
WEIGHTS_MOVE = (
    "the clamp alone would be strict; but privacy weights computed from the confidential file are no fixed function of a "
    "record, and one record can move all others' weights"
)
GATES = "; ε = {epsilon} of it for the gates on which publishing it was decided"
CHAINS = (
    "strict for exact draws only: these are draws of Markov chains within an unknown total variation γ of the clamped "
    "posterior, (ε, (1 + e^ε)γ)-private at best"
)
REJECTION = (
    "strict for exact draws only: these are drawn by rejection, exact but where the density rises above its proposal, "
    f"within a total variation γ of {VARIATION:g} in what was tried, not proven for every file; at that γ {{}}"
)
CENTRED = (
    "log likelihoods are centred at the reference's fit; that, their power and the clamp were fixed, and a spurious mode "
    "was looked for, on the reference alone, before the current file's outcomes were used"
)
FROZEN = (
    "a record's privacy weight is a fixed function of the record: the weight rule's value under fits of the reference alone"
)
SCORED = (
    "scores lie within the reference's range whatever a record holds, but parameters have no such range: no bound over "
    "every file follows"
)
REFERENCE = "the reference file is declared public by the job: of people in it nothing is said"
NOT_REFUSED = (
    "that the reference, or the file that its chain began with, was not refused as the current file itself, or one with "
    "nearly its records, depends on the records and is not in ε"
)
PROVENANCE = "the reference, as the job says: {}"
CALIBRATED = "the mechanism's constants were tuned on period {}, which the job declares public, and not touched since"
COUNTS = (
    "the bins are fixed by public bounds and sizes; a record that is switched off changes one bin's count by 1, one that "
    "is exchanged two, and every count has discrete Laplace noise of scale 1/ε (2/ε under substitution) of a set's ε"
)
SUMS = (
    "weights and outcomes are clipped to public bounds; a record enters one finest cell, by a weight and a centred product "
    "whose L1 distance from any other values' in the same cell, or from none, is at most 2 units of the bounds; both sums "
    "have discrete Laplace noise of scale 2/ε of a set's ε in these units, and margins are sums of cells"
)
LOCAL = (
    "noise has the scale Δ/ε of local sensitivities Δ, those of the file at hand: they are kept confidential, but the "
    "noise itself tells of them, and another file would have had other noise; where all weights or outcomes of a table are "
    "alike there is no noise at all; ε = {} scaled the noise and is no privacy loss"
)
FULL = "every figure has all of ε, though one record enters several: their noise does not compose to ε"
SHARED = "ε is divided by the number of figures that one record enters"
COMPOSED = (
    "weights and outcomes are clipped to public bounds; a record enters every cell that it falls into, over all tables and "
    "margins, by a weight and, where a table needs it, a centred product, whose L1 distance from any other values' in the "
    "same cell, or from none, is at most 2 units of the bounds (1 for weights alone); all sums have discrete Laplace noise "
    "of that scale, times the number of these cells, over ε"
)
CLIPPED = (
    "a record enters one finest cell by 1 − v and vc, v its weight and c its centred outcome, clipped at limits that the "
    "reference and public sizes fixed; their L1 norm is at most 1, so switching a record off moves both sums by at most 1, "
    "and other values at the same x by at most 2; both have discrete Laplace noise of that scale over ε; margins are sums "
    "of cells"
)
CLIPPED_SECRET = (
    "a record enters one finest cell by 1 − v, v(1 + c)/2 and v(1 − c)/2, v its weight and c its centred outcome, clipped "
    "at limits that the reference alone fixed; they are at least 0 and sum to 1, so adding or removing a record moves the "
    "three sums by 1, and exchanging it for any other by at most 2; all have discrete Laplace noise of scale 1/ε (2/ε "
    "under substitution); margins are sums of cells"
)
SEVERAL_SECRET = (
    "with K outcomes a record enters one finest cell by 1 − v and, for each of them, v(1 + c)/2 and v(1 − c)/2, v its "
    "weight and c its centred outcome, clipped at limits that the reference alone fixed; they are at least 0, and 1 − v "
    "and the others over K sum to 1, so adding or removing a record moves the sums by 1 in this norm, and exchanging it "
    "for any other by at most 2: discrete Laplace noise has scale 1/ε on the sum of 1 − v and K/ε on every other (twice "
    "that under substitution); margins are sums of cells"
)
SECRET_SIZES = (
    "the columns of tables and their levels are public, and that the file holds a record; how many there are, and in which "
    "cells, is not, and the numbers told are the released sums'"
)
SEVERAL = (
    "with K outcomes a record enters by 1 − v and vc of each, whose L1 norm with the latter over K is at most 1: noise on "
    "them has K times that scale"
)
ONE_BUDGET = "all tables are sums of the same finest cells, so that one budget serves them all and none is split"
FROM_REFERENCE = (
    "limits, units, clipping's inverse and the tails beyond the limits come from the reference alone; where the current "
    "file's shape is another, beyond a scale of weights and of outcomes, the estimates' bias is in no standard error"
)
CHAINED = (
    "the reference is an earlier release, and a public function of it: for every value of that release this one costs its "
    "own ε, so that a person in files of several periods loses at most the sum of theirs (adaptive composition; the chain "
    "stands under reference); what the first release was fixed on is public as that release says"
)
BINNED = (
    "the reference is made of noisy histograms of the current file over bins fixed by public bounds, for groups of cells "
    "fixed by public sizes: a record enters one bin of the weight and one of every outcome, all with discrete Laplace "
    "noise of scale h/ε₀ (2h/ε₀ under substitution) for h histograms; the table costs the rest for every value of theirs, "
    "so that both together cost ε₀ + ε₁ (adaptive composition). A cell's limits have the least predicted error, from the "
    "noisy histograms and the noise's law alone, and the public bounds are among those tried. A cell's count is its "
    "clipped sum, with half of what its group's histogram holds beyond the limit; its mean is that of the group's outcomes "
    "at the scale that its sum tells. Half of what lies beyond the limits is in the standard errors, and no more of a bias "
    "is: weights and outcomes are taken to be independent within a group"
)
REFRESHED = (
    "the earlier release's shapes are brought up to date by noisy histograms of the current file over bins at orders of "
    "its points, cell by cell, for groups of cells fixed by public sizes: a record enters one bin of the weight and one of "
    "every outcome that has more than two values, all with discrete Laplace noise of scale h/ε₀ (2h/ε₀ under substitution) "
    "for h histograms; the table costs the rest for every value of theirs, so that both together cost ε₀ + ε₁ (adaptive "
    "composition)"
)
SPLIT = "; sequential within a set: ε₀ = {} for the histograms that fix the limits, ε₁ = {} for the table"
SANITIZED = (
    "a record enters one finest cell by its logarithms' distance from the cell's reference mean, whitened and winsorised "
    "by the reference, and the pooled second moments by its square; the L1 norm of both, in their shares of the budget, "
    "is at most 1, so switching a record off moves all sums by at most 1, and other values at the same x by at most 2; all "
    "have discrete Laplace noise of that scale over ε"
)
SANITIZED_GAUSSIAN = (
    "a record enters one finest cell by its logarithms' distance from the cell's reference mean, whitened and winsorised "
    "by the reference, and the pooled second moments by its square; the L2 norm of both, in their shares of ρ, is at most "
    "1, so switching a record off moves all sums by at most 1, and other values at the same x by at most 7/4; all have "
    "discrete Gaussian noise of σ = that over √(2ρ)"
)
LOGNORMAL_SHAPE = (
    "whitening and what winsorising loses come from the reference alone, and within cells logarithms are taken as normal: "
    "the bias of another law is in no standard error"
)
SETS_ARE_FREE = "all {} synthetic sets follow from one noisy statistic, by post-processing"
UNITS = (
    "the {symbol} stated is a {column}'s, of which at most {most} records count; what these assumptions say of one record "
    "is at a record's {symbol}, {share} of it; {most} records move at most {most} times as much, wherever they are"
)
TRUNCATED = (
    "of a {column} with more than {most} records the first {most} in the file's order count; the others are left out, and "
    "where they are unlike those, estimates have a bias that is in no figure"
)
MOMENTS_SANITIZED = (
    "a record enters its cell by 1 − v and vu, v its weight and u its outcome (or log outcome) in half widths of the "
    "public bounds, and the file by v(u² − 1/2); without weights by u and u² − 1/2. Switching it off moves these sums by "
    "at most 3/2 in L1, and other values at the same x by at most 5/2; all have discrete Laplace noise"
)
LOCATION_SANITIZED = (
    "a record enters its cell by 1 − v and vu, v its weight and u its outcome in half widths of the public bounds; without "
    "weights by u. Switching it off moves these sums by at most 1 in L1, and other values at the same x by at most 2; both "
    "have discrete Laplace noise. The variance is the job's, and stated to be public"
)
LEVELS_SANITIZED = (
    "a record enters its cell by 1 − v and its cell's level by v, v its weight; without weights by 1. Switching it off "
    "moves these sums by at most 1 in L1, and another level at the same x by at most 2; all have discrete Laplace noise"
)
SANITIZATION = {
    "conjoint": "all sums have noise of one scale, for their L1 sensitivity and a sanitization's ε",
    "individual": "each kind of sum has an equal part of a sanitization's ε, and noise for its own sensitivity",
}
TRUNCATION = {
    "clamped": "a noisy sum beyond its public domain is set to the nearest end, which is post-processing",
    "bounded": (
        "noisy sums follow the law truncated to their public domains; its scale is the sensitivity over "
        "C log((1 + e^(ε/C))/2), C the number of sums that one record can move, which pays for the truncation"
    ),
    "renormalised": "",
}
NESTED = "{} synthetic sets follow from every sanitization, by post-processing"
MOVES_UNCLAIMED = (
    "a record that changes cells is not covered: public counts show it, and nothing is claimed for the noisy sums"
)
PARALLEL = "; parallel over strata, whose membership is public"
