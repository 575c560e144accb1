"""Mechanisms `laplace` and `laplace_composed`: noisy figures of whole tables; margins get noise too ([T]; METHODS §7)."""
