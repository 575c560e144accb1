"""Design-based statistics: estimators, variances, domains, raking; pure functions of sums."""
