"""Shared base of `weighted_marginals` and `privbayes`, which add noise to weighted tables of coded columns."""
