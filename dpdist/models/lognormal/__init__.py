"""Lognormal models FBS and FBP of outcomes and weight together ([T]; METHODS §5)."""
