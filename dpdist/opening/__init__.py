"""Finished runs opened for reading: public folders, verified and signed, and confidential by-products."""
