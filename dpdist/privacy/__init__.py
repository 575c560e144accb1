"""Privacy theory: guarantees, claims, queries' losses, noise, privacy weights."""
