"""Makes the error for a data file that cannot be read at all."""

from __future__ import annotations

from dpdist.core.errors import DataError, Problem

STATISTICAL = {
    ".sas7bdat": "read_sas7bdat",
    ".xpt": "read_xport",
    ".dta": "read_dta",
    ".sav": "read_sav",
    ".zsav": "read_sav",
}
"""File extensions of SAS, Stata and SPSS, with pyreadstat's function for each."""
FORMATS = f"a Parquet file, a CSV file (.csv, .csv.gz), or a file of SAS, Stata or SPSS ({', '.join(STATISTICAL)})"


def unreadable(name: str, cause: str, remedy: str) -> DataError:
    """The error for a whole file: why it cannot be read, and a remedy."""
    return DataError(name, [Problem("file", cause, FORMATS, remedy)])
