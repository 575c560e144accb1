"""The score model: normal laws for normal scores of weight and outcome under a reference's distributions (METHODS §5b)."""
