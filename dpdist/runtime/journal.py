"""Keeps a journal of a giant stratum's rounds, so that a killed run resumes without repeating finished rounds.

A giant stratum is divided into spans, each visited by a task of its own.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.engine.protocol import Carry
from dpdist.runtime.fit_address import Fit
from dpdist.storage.store import Store


class Journal(NamedTuple):
    """Files of a giant stratum's rounds: the requested pass, each span's carry and result, and the total.

    The carry holds a span's per-record values. A result file lists the checksums of its carry and by-products.
    """

    folder: Path
    confidential: Path
    store: Store

    def request(self, round: int) -> Path:
        return self.folder / f"{round:03d}.request"

    def carry(self, round: int, part: int) -> Path:
        return self.folder / f"{round:03d}-{part:05d}-carry.npy"

    def result(self, round: int, part: int) -> Path:
        return self.folder / f"{round:03d}-{part:05d}.npz"

    def total(self, round: int) -> Path:
        return self.folder / f"{round:03d}.npz"

    def finished(self, round: int, part: int) -> bool:
        """True if a span's result of a round is complete, with its carry and by-products."""
        path = self.result(round, part)
        return self._whole(path) and self.store.intact(self.left(round, part), self.confidential)

    def sound(self, spans: int) -> bool:
        """True if all totals are complete, and so are all files of the last finished round."""
        rounds = 0
        while self.store.take(self.total(rounds)):
            rounds += 1
        left = (self.finished(rounds - 1, span) for span in range(spans) if rounds)
        return all(_readable(self.total(round)) for round in range(rounds)) and all(left)

    def left(self, round: int, part: int) -> dict[str, str]:
        """The files that a span wrote in a finished round, with their checksums."""
        with np.load(self.result(round, part)) as file:
            files: dict[str, str] = json.loads(str(file["left"]))
            return files

    def partials(self, round: int, spans: int) -> Iterator[Floats]:
        """Reads the results of all spans in a finished round, one after another."""
        paths = [self.result(round, span) for span in range(spans)]
        self.store.take_all(paths)
        return (entry(path, "partial") for path in paths)

    def take_carry(self, round: int, part: int) -> None:
        """Copies a span's complete result and carry from the store to this workspace."""
        self.store.take(self.result(round, part), anew=True)
        name = str(self.carry(round, part).relative_to(self.confidential))
        self.store.take_files({name: self.left(round, part)[name]}, self.confidential)

    def block_state(self, round: int, part: int) -> Carry:
        """Opens the carry of a span after a round; it is memory-mapped, because a pass need not read all of it."""
        if not self.store.shared:
            self.take_carry(round, part)
        with np.load(self.result(round, part)) as file:
            names = file["names"].tolist()
        return dict(zip(names, np.asarray(np.load(self.carry(round, part), mmap_mode="r")), strict=True))

    def recorded(self, round: int, spans: int) -> dict[str, str]:
        """By-products of a round that spans stored outside of the journal's folder, with their checksums."""
        folder = str(self.folder.relative_to(self.confidential))
        entries = [entry for span in range(spans) for entry in self.left(round, span).items()]
        return {name: digest for name, digest in entries if not name.startswith(f"{folder}/")}

    def clear(self, before: int) -> None:
        """Deletes the files that spans wrote in rounds before `before`."""
        for round in range(before):
            for path in self.folder.glob(f"{round:03d}-*.np?"):
                path.unlink()
        self.store.drop([self.folder / name for name in self.store.names(self.folder) if _of_part(name) < before])

    def remove(self) -> None:
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.store.drop([self.folder])

    def _whole(self, path: Path) -> bool:
        return self.store.take(path) and _readable(path)


def journal_of(fit: Fit, stratum: int) -> Journal:
    return Journal(fit.space.journal(fit.address.name, stratum), fit.space.confidential, fit.space.store)


def entry(path: Path, name: str) -> Floats:
    """Reads an array from a file of a result or a total."""
    with np.load(path) as file:
        entry: Floats = file[name]
    return entry


def _of_part(name: str) -> float:
    """The round in a span file's name; infinity for other files, which are never cleared."""
    return int(name[:3]) if "-" in name and not name.startswith(".") else float("inf")


def _readable(path: Path) -> bool:
    """True for a complete file: names, sizes and checksums inside the archive agree."""
    if not path.exists():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError):
        return False
