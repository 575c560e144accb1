"""Says in a new job how many cells noise would drown at its ε, from the sizes of cells in a public file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dpdist.cli.draft import Draft
from dpdist.core.errors import ProblemsError
from dpdist.job.loading import parse_job
from dpdist.planning.expected_noise import at_sizes_of
from dpdist.survey.census import take_census
from dpdist.survey.source import Source

NOT_KNOWN = "`dpdist plan` says how many cells noise drowns at this ε, and which ε would do: no public sizes are known here"


def with_noise(draft: Draft, folder: Path, public: Path | None, sources: Mapping[Path, Source]) -> Draft:
    """Returns the draft with a comment on the noise, if its mechanism adds noise.

    The confidential file's sizes are not used. `folder` is that of the job file.
    """
    if not draft.spec.adds_noise:
        return draft
    comment = NOT_KNOWN
    if public is not None:
        with suppress(ProblemsError):  # lines are left to fill, or the public file does not fit the job
            job = parse_job(draft.text(), folder=folder)
            if (expected := at_sizes_of(job, take_census(job, sources[public]).frame)) is not None:
                comment = f"With cells as large as those of {public.name}, {expected}"
    return replace(draft, noise=comment)
