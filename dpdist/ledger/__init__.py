"""The ledger records the cost of every release of a dataset before it starts, and enforces limits on the sums."""
