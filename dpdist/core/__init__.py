"""The lowest layer, used by all others: errors, keys, files, progress and record types. It imports only libraries."""
