"""Runs a mechanism for `runtime` and `audit`: answers its requests for sums over records, draws and noise."""
