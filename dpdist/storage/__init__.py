"""Files of a run's workspace, for `release` and `runtime`: folders, object stores, arrays, noise drawn once."""
