"""Mechanisms that release draws of a tilted or clamped posterior ([T], [V], [G]; METHODS §3, §4)."""
