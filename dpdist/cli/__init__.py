"""The command line: it parses arguments and prints results; every command calls a function of the package."""
