"""Noisy figures of whole tables, margins noised as cells are ([T]; METHODS §7)."""
