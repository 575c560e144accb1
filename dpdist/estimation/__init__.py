"""Design-based statistics for `publish`, `quality` and `mechanisms`: estimators, variances, domains and raking of sums."""
