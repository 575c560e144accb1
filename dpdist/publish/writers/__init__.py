"""Writers that `publish.folder` calls for the public folder's files, a file format or product each."""
