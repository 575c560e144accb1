"""Design-based statistics without privacy: estimators, variances, domains, raking, shrinkage."""
