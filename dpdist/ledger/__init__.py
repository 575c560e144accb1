"""The ledger: it records the cost of every release of a dataset before the release starts, and limits the sums."""
