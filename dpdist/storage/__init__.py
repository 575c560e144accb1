"""Where a workspace lies: folders and object stores, completion records, arrays, noise that is drawn once."""
