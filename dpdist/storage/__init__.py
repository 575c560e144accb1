"""Files of a run's workspace: folders, object stores, arrays, noise drawn once."""
