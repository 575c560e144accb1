"""Lognormal models of outcomes and weight: FBS (fully Bayes for the sample), FBP (for the population) ([T]; METHODS §5)."""
