"""The released object: all that `publish` needs, and all that leaves the confidential side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dpdist.confidential import refuse_confidential
from dpdist.errors import WorkspaceError
from dpdist.files import sha256, write_json, write_text
from dpdist.frames import frame_from_table, frame_table
from dpdist.job import Job, budget_text
from dpdist.keys import Key
from dpdist.models import MODELS
from dpdist.models.protocol import Draws, StratumModel
from dpdist.privacy.guarantees import NoGuarantee, Promise, bound_target, delta_text, epsilon_text
from dpdist.records import Frame


@dataclass(frozen=True)
class Release:
    """Parameters of every synthetic set and stratum, with the public facts they stand on.

    `sets[k][label]` is the described θ of set k + 1; `frame.strata` is empty where the fit was pooled.
    """

    job: Job
    promise: Mapping[str, Any]
    frame: Frame
    sets: tuple[Mapping[str, Mapping[str, Any]], ...]
    seed: Key

    def __post_init__(self) -> None:
        refuse_confidential((self.promise, self.sets))

    @property
    def target(self) -> float:
        """Δ* of a set's fit, a public constant of the job; infinite where nothing is promised."""
        if self.promise["guarantee"] == "none":
            return float("inf")
        return bound_target(self.job.epsilon_per_set, self.job.budget.adjacency)

    def model(self, stratum: int) -> StratumModel:
        """The model that a stratum was fitted with, its prior included."""
        proper = self.sets[0][self.frame.stratum_labels[stratum]]["prior"] == "proper"
        return MODELS[self.job.model.family].build(self.job, self.frame, self.frame.rows_of(stratum), proper)

    def theta(self, model: StratumModel, stratum: int, set: int) -> Draws:
        return model.recall(self.sets[set][self.frame.stratum_labels[stratum]])


def promised(promise: Promise, sampler: Mapping[str, Any], reference: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A promise in JSON terms, with how the posterior was sampled and what was fixed on which reference."""
    guarantee = promise.total
    said: dict[str, Any] = {"guarantee": guarantee.name}
    said["adjacency"] = None if isinstance(guarantee, NoGuarantee) else guarantee.adjacency
    said["epsilon"] = epsilon_text(guarantee)
    said["epsilon_per_set"] = epsilon_text(promise.per_set)
    exchanged = None if isinstance(guarantee, NoGuarantee) else guarantee.substitution_epsilon
    said["substitution_epsilon"] = None if exchanged is None else budget_text(exchanged)
    said["delta"] = delta_text(guarantee)
    said["composition"] = promise.composition
    said["assumptions"] = list(promise.assumptions)
    said["sampler"] = dict(sampler)
    if reference is not None:
        said["reference"] = dict(reference)
    return said


def write_release(folder: Path, release: Release) -> None:
    """Write `released/`: job, promise, frame, one file a set, and the seed of publication."""
    folder.mkdir(parents=True)
    write_json(folder / "job.json", release.job.public)
    write_json(folder / "promise.json", dict(release.promise))
    pq.write_table(frame_table(release.frame), folder / "frame.parquet")
    for number, strata in enumerate(release.sets, start=1):
        write_json(folder / f"set-{number}.json", {"set": number, "family": release.job.model.family, "strata": strata})
    write_text(folder / "seed", release.seed.hex() + "\n")


def read_release(folder: Path) -> Release:
    """The inverse of `write_release`. Raises `WorkspaceError` where there is no complete release."""
    _refuse_changed(folder)
    try:
        job = Job.model_validate_json((folder / "job.json").read_text(encoding="utf-8"))
        promise = json.loads((folder / "promise.json").read_text(encoding="utf-8"))
        frame = frame_from_table(pq.read_table(folder / "frame.parquet"))
        names = [folder / f"set-{number}.json" for number in range(1, job.synthetic_sets + 1)]
        sets = tuple(json.loads(name.read_text(encoding="utf-8"))["strata"] for name in names)
        seed = Key.read(folder / "seed")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WorkspaceError(
            str(folder), f"no complete release ({type(error).__name__})", "run `dpdist run` on this workspace first"
        ) from None
    return Release(job, promise, frame, sets, seed)


def _refuse_changed(folder: Path) -> None:
    """Raises `WorkspaceError` if a manifest beside the folder tells of other content."""
    path = folder.parent / "manifest.json"
    if not path.exists():
        return
    remedy = "restore it from a copy, or let `dpdist run` make the folder again"
    try:
        files: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["files"]
        said = {name: digest for name, digest in files.items() if name.startswith(f"{folder.name}/")}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WorkspaceError(str(folder.parent), "manifest.json is damaged", remedy) from None
    for name, digest in said.items():
        file = folder.parent / name
        if not file.is_file() or sha256(file) != digest:
            raise WorkspaceError(str(folder.parent), f"{name} is not the file that manifest.json tells of", remedy)
