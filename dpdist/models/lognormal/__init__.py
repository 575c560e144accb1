"""Outcomes and weight together, lognormal: FBS and FBP ([T]; METHODS §5)."""
