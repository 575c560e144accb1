"""Opens finished runs for `cli` and `dpdist`: verifies and signs public folders, reads confidential by-products."""
