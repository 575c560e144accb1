"""The ledger, which records every release's privacy cost before the release starts, and limits the sums."""
