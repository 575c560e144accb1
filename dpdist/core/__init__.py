"""The lowest layer of the package: errors, keys, files, progress and record types. It imports no other part of dpdist."""
