"""Runs the rounds of a mechanism, in memory or on workers, and answers its requests."""
