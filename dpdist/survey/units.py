"""Records of one privacy unit: never more than its stated maximum, counted in the file's order."""

from __future__ import annotations

import re
from collections import Counter
from unicodedata import normalize

import numpy as np
import pandas as pd

from dpdist.job import Job
from dpdist.survey.checks import Checked
from dpdist.survey.findings import Findings

NUMBER = re.compile(r"0*(\d+)(?:\.0*)?")
"""A whole number, as programs write it in columns with missing values too."""


def spelled(name: str) -> str:
    """One spelling of a unit's name: without blanks around it, numbers without leading zeros or a fraction of 0.

    Units that are taken together have fewer records that count, so that no bound is passed by spelling.
    """
    text = normalize("NFKC", name).strip()
    whole = NUMBER.fullmatch(text)
    return text if whole is None else whole[1]


class Bounded:
    """Counts the records of every unit over the batches of one pass; holds one number a unit.

    Whether a record is one too many follows from records of its own unit alone.
    """

    def __init__(self, job: Job, findings: Findings):
        self.said, self.findings = job.privacy_unit, findings
        self.seen = Counter[str]()

    def __call__(self, checked: Checked) -> Checked:
        """The batch without records beyond the maximum, which are counted as problems or as left out."""
        if self.said is None or checked.unit is None or not len(checked.row):
            return checked
        code, names = pd.factorize(np.array([spelled(name) for name in checked.unit.to_pylist()], dtype=object))
        before = np.array([self.seen[name] for name in names], dtype=np.int64)
        beyond = pd.Series(code).groupby(code).cumcount().to_numpy() + before[code] >= self.said.most
        self.seen.update(dict(zip(names, np.bincount(code).tolist(), strict=True)))
        if not beyond.any():
            return checked
        column, most = self.said.column, self.said.most
        if self.said.beyond == "truncate":
            self.findings.rule(f"{column}: beyond {most} records of one, left out", int(beyond.sum()))
        else:
            remedy = "raise privacy_unit.most to a number that is public, or state privacy_unit.beyond: truncate"
            found, allowed = f"more than {most} records of one {column}", f"at most {most} records of each"
            self.findings.add(column, found, allowed, remedy, checked.row[beyond], [])
        return checked.take(~beyond)
