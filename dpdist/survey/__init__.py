"""Reads files: the confidential one, references and codebooks; checks records and places them by stratum."""
