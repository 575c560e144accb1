"""Paths of all files of a run. Only the owner can read those below `confidential`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STATUS = "status.json"
"""Name of the status file in the workspace; only its owner can read it."""
HELD = "held"
"""Name of the folder of a release that waits for approval."""
SCRATCH = "scratch-"
"""Prefix of the names of temporary folders in the confidential folder."""
GATHERED = "gathered"
"""Unit that is finished when every stratum is finished. No noise is drawn after it."""
SEALED = "sealed"
"""Unit that replaces `gathered` where its mark is lost after a publication. No noise is drawn after this unit either."""


@dataclass(frozen=True)
class WorkspacePaths:
    """Paths of a run."""

    root: Path

    @property
    def public(self) -> Path:
        return self.root / "public"

    @property
    def held(self) -> Path:
        """Folder of a release that waits for approval. After approval it becomes the public folder."""
        return self.root / HELD

    @property
    def confidential(self) -> Path:
        return self.root / "confidential"

    @property
    def decisions(self) -> Path:
        """File of decisions: who approved or refused which release, and why."""
        return self.confidential / "decisions.json"

    @property
    def records(self) -> Path:
        return self.confidential / "records" / "records.arrow"

    @property
    def frame(self) -> Path:
        return self.confidential / "records" / "frame.parquet"

    @property
    def noisy_frame(self) -> Path:
        """The published frame, where predictors are protected; fits use this frame only."""
        return self.confidential / "records" / "noisy_frame.parquet"

    @property
    def reference(self) -> Path:
        """The reference's records under rows of the current frame."""
        return self.confidential / "records" / "reference.arrow"

    @property
    def copied(self) -> Path:
        """Columns of the reference's file that synthetic records copy, in the file's order."""
        return self.confidential / "records" / "copied.parquet"

    @property
    def earlier_points(self) -> Path:
        """Points of an earlier release under rows of the current frame."""
        return self.confidential / "records" / "carried.parquet"

    def learned(self, fit: str, stratum: int) -> Path:
        """Constants that the reference fixed for one stratum."""
        return self.confidential / "reference" / f"{fit}-{stratum:06d}.pickle"

    @property
    def job(self) -> Path:
        return self.confidential / "job.json"

    @property
    def key(self) -> Path:
        return self.confidential / "key"

    @property
    def log(self) -> Path:
        return self.confidential / "log"

    @property
    def fits(self) -> Path:
        """Private folders of Stan runs. The next run removes files of a killed run."""
        return self.confidential / f"{SCRATCH}fits"

    def noise(self, fit: str, stratum: int, set: int) -> Path:
        """Noise of one stratum and set with its purpose.

        It is never deleted: a second draw would reveal the protected sums.
        """
        return self.confidential / "noise" / f"{fit}-{stratum:06d}-{set:03d}.npz"

    @property
    def log_lik(self) -> Path:
        return self.confidential / "log_lik.zarr"

    @property
    def posterior(self) -> Path:
        return self.confidential / "posterior.zarr"

    @property
    def evaluation(self) -> Path:
        return self.confidential / "evaluation"

    @property
    def report(self) -> Path:
        """The custodian's page on the accuracy of the release."""
        return self.confidential / "report.html"

    @property
    def status(self) -> Path:
        """The status of a run, which the command line shows to others."""
        return self.root / STATUS

    def part(self, fit: str, stratum: int) -> Path:
        """Folder of one stratum's by-products before they are combined."""
        return self.confidential / "parts" / f"{fit}-{stratum:06d}"

    def journal(self, fit: str, stratum: int) -> Path:
        """Folder of a giant stratum's rounds while it is being protected."""
        return self.journals / f"{fit}-{stratum:06d}"

    @property
    def journals(self) -> Path:
        return self.confidential / "journal"

    @property
    def completions(self) -> Path:
        return self.confidential / "marks"

    @property
    def replay(self) -> Path:
        """A file that exists where a run repeats the draws of another run."""
        return self.confidential / "replay"

    @property
    def receipt(self) -> Path:
        """The ledger and the entry to which the run was charged."""
        return self.confidential / "ledger.json"

    @property
    def identity(self) -> Path:
        return self.confidential / "identity.json"
