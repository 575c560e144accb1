"""Runs the command line by `python -m dpdist`."""

from dpdist.cli.main import main

if __name__ == "__main__":
    main()
