"""Design-based statistics, as pure functions of sums: estimators, variances, domains and raking."""
