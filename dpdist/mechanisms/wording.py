"""Texts for statements that several mechanisms share: assumptions, conditions of a bound, and errors that no published
standard error includes.
"""

from __future__ import annotations

from dpdist.sampling.clamped import VARIATION

PUBLIC_X = (
    "Predictors, strata, design strata and table columns are public, and the number of sample records in each combination "
    "of them."
)
WEIGHTS_ARE_ATTRIBUTES = (
    "A record's sampling weight is taken as its own attribute. Where weights were calibrated or adjusted for nonresponse "
    "from the same sample, one person moves others' weights. No record-level claim covers that."
)
MISFIT = (
    "Records are taken to have a {} law within cells. A real file may not: tables and synthetic records can then be off "
    "by many standard errors. This bias is in no figure of the release."
)
MOVES_COST = "A record that changes cells is not covered: public counts show it. The noisy sums alone would cost {}."
MOVES_TWICE = MOVES_COST.format("up to twice the ε stated")
MOVES_EXCHANGED = MOVES_COST.format("no more than an exchange at the same x")
MOVES_OF_TWO = {
    "zero_out": MOVES_COST.format("at most twice ε"),
    "add_remove": MOVES_COST.format("at most twice ε"),
    "substitution": MOVES_COST.format("at most ε"),
}
"""Texts by adjacency, for mechanisms in which a move to another cell costs as much as switching off two records."""
MOVES_UNKNOWN = (
    "A record that changes cells is not covered: public counts show it. Limits follow from these counts, so that no "
    "figure is claimed for the noisy sums."
)
USERS_PART = (
    "The user's program: its target is a log prior plus Σ alpha·log_lik, and the prior is proper. Neither it nor "
    "transformed data that enter it use y, w or alpha.",
    "The user's program: log_lik of a record depends on that record and the parameters alone. A Python log_lik is the "
    "density that the program weighs.",
    "The user's program: the rounding error of its log_lik is assumed, not known.",
)
USERS_CLAMP = (
    "The user's program: its target weighs a record by exp(clamp(alpha(log_lik − reference), ±clamp)). Where the job has a "
    "reference this was tried on its records, at some parameters."
)
NO_AMPLIFICATION = "No amplification by subsampling is claimed."
GATES = "; ε = {epsilon} of it for the gates on which publishing it was decided"
CHAINS = (
    "The guarantee is strict for exact draws only. These are draws of Markov chains within an unknown total variation γ of "
    "the clamped posterior, (ε, (1 + e^ε)γ)-private at best."
)
REJECTION = (
    "The guarantee is strict for exact draws only. These are drawn by rejection, which is exact but where the density "
    f"rises above its proposal. That was within a total variation γ of {VARIATION:g} in what was tried, not proven for "
    f"every file. At that γ {{}}."
)
REFERENCE = "The reference file is declared public by the job: of people in it nothing is said."
NOT_REFUSED = (
    "The reference, or the file that its chain began with, was not refused as the current file itself, or one with nearly "
    "its records. That it was not depends on the records and is in no ε."
)
PROVENANCE = "The reference, as the job says: {}"
CALIBRATED = "The mechanism's constants were tuned on period {}, which the job declares public, and not touched since."
SECRET_SIZES = (
    "The columns of tables and their levels are public, and that the file holds a record. How many records there are, and "
    "in which cells, is not public. The numbers published are the released sums'."
)
NOISY_FRAME = (
    "The columns of the frame ({columns}) and their levels are public, and that the file holds a record. How many sample "
    "records each combination has is not public. The numbers published, in tables, synthetic records and errors alike, are "
    "noisy ones. They were drawn once, before anything else was computed (see protected_predictors)."
)
OF_FRAME = "; ε = {epsilon} of it for noisy sample counts by {columns}"
CHAINED = (
    "The reference is an earlier release, and a public function of it: for every value of that release this one costs its "
    "own ε. So a person in files of several periods loses at most the sum of theirs (adaptive composition; the chain "
    "stands under reference). What the first release was fixed on is public as that release says."
)
BINNED = (
    "The reference is made of noisy histograms of the current file. Their bins are fixed by public bounds, for groups of "
    "cells fixed by public sizes. A record enters one bin of the weight and one of every outcome. All have discrete "
    "Laplace noise of scale h/ε₀ (2h/ε₀ under substitution) for h histograms. The table costs the rest for every value of "
    "theirs, so that both together cost ε₀ + ε₁ (adaptive composition). A cell's limits have the least predicted error, "
    "from the noisy histograms and the noise's law alone. The public bounds are among those tried. A cell's count is its "
    "clipped sum, with what its group's histogram holds beyond the limit. Its mean is the clipped one, with what the "
    "group's outcomes hold beyond the window. Weights and outcomes are taken to be independent within a group."
)
REFRESHED = (
    "The earlier release's shapes are brought up to date by noisy histograms of the current file. Their bins lie at "
    "orders of its points, cell by cell, for groups of cells fixed by public sizes. A record enters one bin of the weight "
    "and one of every outcome that has more than two values. All have discrete Laplace noise of scale h/ε₀ (2h/ε₀ under "
    "substitution) for h histograms. The table costs the rest for every value of theirs, so that both together cost ε₀ + "
    "ε₁ (adaptive composition)."
)
UNITS = (
    "The {symbol} stated is that of a {column}, of which at most {most} records count. What these assumptions say of one "
    "record is at a record's {symbol}, {share} of it. Together {most} records move at most {most} times as much, wherever "
    "they are."
)
THIRD_PARTY = (
    "The mechanism is third-party: {distribution} {version}. Its authors state how far neighbouring files move its sums. "
    "The guarantee is computed from that and from the noise that was drawn."
)
TRUNCATED = (
    "Of a {column} with more than {most} records the first {most} in the file's order count. The others are left out. "
    "Where they are unlike those, estimates have a bias that is in no figure."
)
PARALLEL = "; parallel over strata, whose membership is public"
MOVED = "; a record is in one stratum, and an exchange for a record of another touches two, at half of ε each"
