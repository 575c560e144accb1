"""Shared code of mechanisms that add noise to weighted tables of coded columns: `weighted_marginals` and `privbayes`."""
