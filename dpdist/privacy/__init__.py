"""Privacy theory for mechanisms, `ledger` and `publish`: guarantees, claims, queries' losses, noise, privacy weights."""
