"""Writers of the public folder's files: one module for each format or product."""
