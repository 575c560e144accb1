"""Opens finished runs again: verifies and signs public folders, and reads confidential by-products."""
