"""For `release`, `runtime`, `quality`: names all files of a run; only the owner reads `confidential`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STORES_FORM = 2
"""The form of the stores of draws. Strata with draws in stores of an earlier form are fitted again, from the same key."""
LEARNED_FORM = 6
"""The form of what was learned from a reference.
Results of an earlier form are learned again from public data. A run that has measured under other values is refused.
"""
STORED_REFERENCE = "stored-reference-2"
"""Name of the completion record of the reference's stored records; its number is that of their form."""
STATUS = "status.json"
"""Name of the status file in the workspace; only its owner can read it."""
HELD = "held"
"""Name of the folder of a release that waits for approval."""
SCRATCH = "scratch-"
"""Prefix of the names of temporary folders in the confidential folder."""
GATHERED = "gathered"
"""Name of the completion record that results of all strata are gathered. After that, no noise is drawn."""
SEALED = "sealed"
"""Name of the record that replaces a `gathered` lost after publication; no noise is drawn either."""


@dataclass(frozen=True)
class WorkspacePaths:
    """The paths of a run's files, in its workspace."""

    root: Path

    @property
    def public(self) -> Path:
        return self.root / "public"

    @property
    def held(self) -> Path:
        """The folder of a release that waits for approval."""
        return self.root / HELD

    @property
    def confidential(self) -> Path:
        return self.root / "confidential"

    @property
    def decisions(self) -> Path:
        return self.confidential / "decisions.json"

    @property
    def records(self) -> Path:
        return self.confidential / "records" / "records.arrow"

    @property
    def crosstab(self) -> Path:
        return self.confidential / "records" / "frame.parquet"

    @property
    def noisy_crosstab(self) -> Path:
        """The published crosstab, where predictors are protected. Fits use no other crosstab then."""
        return self.confidential / "records" / "noisy_frame.parquet"

    @property
    def reference(self) -> Path:
        return self.confidential / "records" / "reference.arrow"

    @property
    def copied(self) -> Path:
        return self.confidential / "records" / "copied.parquet"

    @property
    def absent(self) -> Path:
        """The reference's records in crosses that the current file lacks, if the mechanism learns from them."""
        return self.confidential / "records" / "absent.parquet"

    @property
    def history(self) -> Path:
        """Totals of earlier periods, if the reference is a release that states them."""
        return self.confidential / "records" / "history.json"

    def learned(self, fit: str, stratum: int) -> Path:
        return self.confidential / "reference" / f"{fit}-{stratum:06d}-{LEARNED_FORM}.pickle"

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
        """Private folders for runs of Stan. The next run removes what a killed run left there."""
        return self.confidential / f"{SCRATCH}fits"

    def noise(self, fit: str, stratum: int, set: int) -> Path:
        """The noise of a stratum and set, with what it is for.

        It is never deleted, because a second draw for the same sums would spend the budget again.
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
        return self.confidential / "report.html"

    @property
    def status(self) -> Path:
        return self.root / STATUS

    def part(self, fit: str, stratum: int) -> Path:
        return self.parts / f"{fit}-{stratum:06d}"

    @property
    def parts(self) -> Path:
        return self.confidential / "parts"

    def journal(self, fit: str, stratum: int) -> Path:
        return self.journals / f"{fit}-{stratum:06d}"

    @property
    def journals(self) -> Path:
        return self.confidential / "journal"

    @property
    def completions(self) -> Path:
        return self.confidential / "marks"

    @property
    def replay(self) -> Path:
        """A file that exists if the run repeats the draws of another run, or of a key."""
        return self.confidential / "replay"

    @property
    def receipt(self) -> Path:
        """The receipt of the run's charge: its ledger, and the entry there."""
        return self.confidential / "ledger.json"

    @property
    def identity(self) -> Path:
        return self.confidential / "identity.json"
