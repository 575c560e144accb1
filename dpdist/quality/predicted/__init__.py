"""For `cli`: predicts a release's errors before anything is spent, by running its mechanism on public records."""
