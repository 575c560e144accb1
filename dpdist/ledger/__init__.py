"""The ledger: the cost of every release of a dataset, charged before the release starts, and the limits of the sums."""
