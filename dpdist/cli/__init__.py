"""The command line: every command parses its arguments, calls a function of the package and prints the result."""
