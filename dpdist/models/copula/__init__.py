"""The score model: normal scores of weight and outcomes under a reference's distributions (METHODS §5b)."""
