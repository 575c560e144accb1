"""Predicted errors of a release, before anything is spent, by running its mechanism on public records."""
