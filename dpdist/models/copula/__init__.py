"""The score model, a copula of weight and outcome: normal laws for their normal scores under a reference (METHODS §5b)."""
