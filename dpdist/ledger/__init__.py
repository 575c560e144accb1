"""The ledger records every release's privacy cost before it starts, and limits the sums; `release` and `cli` use it."""
