"""Lowest layer of the package: errors, keys, files, progress, record types; it imports nothing else of dpdist."""
