"""Reads files for `planning` and `runtime`: the confidential one, references, codebooks; checks and places records."""
