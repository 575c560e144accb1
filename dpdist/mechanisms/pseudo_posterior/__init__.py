"""Mechanisms that release draws of a pseudo posterior or of a clamped posterior ([T], [V], [G]; METHODS §3, §4)."""
