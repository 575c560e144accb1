"""The command line: it parses and prints; every verb is a function of the package."""
