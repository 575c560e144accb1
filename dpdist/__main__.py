"""Starts the command line, `cli.main`, when the package is run by `python -m dpdist`."""

from dpdist.cli.main import main

if __name__ == "__main__":
    main()
