"""The score model: weight and outcomes by normal scores under a reference's distributions (METHODS §5b)."""
