"""Finds the texts of a mechanism for a release's statement, by the mechanism's name.

This file loads no code that sees a record.
"""

from __future__ import annotations

from dpdist.job import Job
from dpdist.mechanisms.parts import REQUIRED, Parts
from dpdist.mechanisms.words import Words

WORDS: Parts[Words] = Parts("WORDS", *REQUIRED["WORDS"])


def words_of(job: Job) -> Words:
    """The texts of a job's mechanism."""
    return WORDS[job.mechanism.name]
