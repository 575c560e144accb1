"""Mechanism `laplace_strict`: noisy sums of base cells under public bounds; margins are sums of cells (METHODS §7)."""
