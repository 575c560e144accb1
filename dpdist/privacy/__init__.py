"""Privacy theory: guarantees and their claims, queries and their losses, noise, and privacy weights."""
