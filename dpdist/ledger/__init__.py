"""The ledger: what every release of a dataset costs, charged before it is begun, and the limits of what all may cost."""
