"""Runs a mechanism, in memory or on workers: answers its requests for sums over records, draws and noise."""
