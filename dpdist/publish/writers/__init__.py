"""Writers of the public folder's files, a file format or product each."""
