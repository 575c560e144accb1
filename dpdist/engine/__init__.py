"""The engine, which runs a mechanism: it answers requests for sums over records, draws and noise."""
