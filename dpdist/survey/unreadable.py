"""Error messages for files that cannot be read at all."""

from __future__ import annotations

from dpdist.core.errors import DataError, Problem

STATISTICAL = {
    ".sas7bdat": "read_sas7bdat",
    ".xpt": "read_xport",
    ".dta": "read_dta",
    ".sav": "read_sav",
    ".zsav": "read_sav",
}
"""Files of SAS, Stata and SPSS, by the ends of their names, and what reads them in pyreadstat."""
FORMATS = f"a Parquet file, a CSV file (.csv, .csv.gz), or a file of SAS, Stata or SPSS ({', '.join(STATISTICAL)})"


def unreadable(name: str, cause: str, remedy: str) -> DataError:
    """The error of a whole file."""
    return DataError(name, [Problem("file", cause, FORMATS, remedy)])
