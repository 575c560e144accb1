"""What statements say of mechanisms: what is assumed, what a bound rests on, what is in no figure."""

from __future__ import annotations

from dpdist.sampling.clamped import VARIATION

PUBLIC_X = (
    "predictors, strata, design strata, table columns and the number of sample records in each combination are public"
)
WEIGHTS_ARE_ATTRIBUTES = (
    "a record's sampling weight is taken as its own attribute: where weights were calibrated or adjusted for nonresponse "
    "from the same sample, one person moves others' weights, and no record-level claim covers that"
)
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
NO_AMPLIFICATION = "no amplification by subsampling is claimed"
GATES = "; ε = {epsilon} of it for the gates on which publishing it was decided"
CHAINS = (
    "strict for exact draws only: these are draws of Markov chains within an unknown total variation γ of the clamped "
    "posterior, (ε, (1 + e^ε)γ)-private at best"
)
REJECTION = (
    "strict for exact draws only: these are drawn by rejection, exact but where the density rises above its proposal, "
    f"within a total variation γ of {VARIATION:g} in what was tried, not proven for every file; at that γ {{}}"
)
REFERENCE = "the reference file is declared public by the job: of people in it nothing is said"
NOT_REFUSED = (
    "that the reference, or the file that its chain began with, was not refused as the current file itself, or one with "
    "nearly its records, depends on the records and is not in ε"
)
PROVENANCE = "the reference, as the job says: {}"
CALIBRATED = "the mechanism's constants were tuned on period {}, which the job declares public, and not touched since"
SECRET_SIZES = (
    "the columns of tables and their levels are public, and that the file holds a record; how many there are, and in which "
    "cells, is not, and the numbers told are the released sums'"
)
NOISY_FRAME = (
    "the columns of the frame ({columns}) and their levels are public, and that the file holds a record; how many sample "
    "records each combination has is not: the numbers published, in tables, synthetic records and errors alike, are noisy "
    "ones, drawn once before anything else was computed (see protected_predictors)"
)
OF_FRAME = "; ε = {epsilon} of it for noisy sample counts by {columns}"
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
    "at the scale that its sum tells. Weights and outcomes are taken to be independent within a group"
)
REFRESHED = (
    "the earlier release's shapes are brought up to date by noisy histograms of the current file over bins at orders of "
    "its points, cell by cell, for groups of cells fixed by public sizes: a record enters one bin of the weight and one of "
    "every outcome that has more than two values, all with discrete Laplace noise of scale h/ε₀ (2h/ε₀ under substitution) "
    "for h histograms; the table costs the rest for every value of theirs, so that both together cost ε₀ + ε₁ (adaptive "
    "composition)"
)
UNITS = (
    "the {symbol} stated is a {column}'s, of which at most {most} records count; what these assumptions say of one record "
    "is at a record's {symbol}, {share} of it; {most} records move at most {most} times as much, wherever they are"
)
TRUNCATED = (
    "of a {column} with more than {most} records the first {most} in the file's order count; the others are left out, and "
    "where they are unlike those, estimates have a bias that is in no figure"
)
PARALLEL = "; parallel over strata, whose membership is public"
MOVED = "; a record is in one stratum, and an exchange for a record of another touches two, at half of ε each"
