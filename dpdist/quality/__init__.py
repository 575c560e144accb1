"""Quality of releases, for the methodologist and confidential: published figures against direct ones and comparators."""
