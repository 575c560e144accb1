"""Tasks that `runtime.strata` and `reference` schedule: several small strata in one, giant strata round by round."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.errors import FitError
from dpdist.core.files import replaced
from dpdist.core.records import Floats
from dpdist.engine.protocol import BlockRecorder, Carry, Pass, combine, drive, run_rounds, visit_blocks
from dpdist.models.protocol import Improper
from dpdist.privacy.weights import NotReached
from dpdist.runtime.attempts import beat, note
from dpdist.runtime.executors import Executor
from dpdist.runtime.fit_address import Address, Fit
from dpdist.sampling import Unconverged
from dpdist.storage.byproducts import MemberStore, StratumFinished, StratumStore
from dpdist.storage.store import Store, checksums


# A giant stratum is divided into spans, each visited by a task of its own.
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
        earlier_spans = (self.finished(rounds - 1, span) for span in range(spans) if rounds)
        return all(_readable(self.total(round)) for round in range(rounds)) and all(earlier_spans)

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
    with np.load(path) as file:
        entry: Floats = file[name]
    return entry


def _of_part(name: str) -> float:
    return int(name[:3]) if "-" in name and not name.startswith(".") else float("inf")


def _readable(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError):
        return False


class Outcome(NamedTuple):
    """Result of a stratum: `failure` is the reason why it cannot be released, or None."""

    stratum: int
    failure: str | None


@dataclass(frozen=True)
class ProtectBin:
    """Task that protects the small strata of one bin.

    It skips strata that an earlier run or a lost worker has finished.
    """

    address: Address
    workers: int
    """Number of workers for which bins were made."""

    def __call__(self, number: int) -> list[Outcome]:
        fit = self.address.open()
        return protect_unfinished(fit, fit.layout.bins(self.workers)[number])

    def unit(self, number: int) -> dict[str, int | str]:
        strata = self.address.open().layout.bins(self.workers)[number]
        return {"fit": self.address.name, "stratum": strata[0], "strata": len(strata)}


@dataclass(frozen=True)
class ProtectOne:
    """Task that protects one small stratum."""

    address: Address

    def __call__(self, stratum: int) -> list[Outcome]:
        return protect_unfinished(self.address.open(), [stratum])

    def unit(self, stratum: int) -> dict[str, int | str]:
        return {"fit": self.address.name, "stratum": stratum, "strata": 1}


def protect_unfinished(fit: Fit, strata: Sequence[int]) -> list[Outcome]:
    done, outcomes = fit.done(strata), list[Outcome]()
    for batch in dict.fromkeys(map(fit.layout.batch_of, strata)):
        if batch.start in done:
            outcomes += [Outcome(stratum, None) for stratum in batch]
        elif fit.layout.batch_strata == 1:
            outcomes.append(protect_small(fit, batch.start))
        else:
            outcomes += protect_batch(fit, batch)
    return outcomes


def protect_small(fit: Fit, stratum: int) -> Outcome:
    """Runs all rounds of a stratum in memory, and stores its by-products and its completion record."""
    store = fit.store(stratum)
    part = store.part(0)
    try:
        described = _described(fit, stratum, store, part.block)
        part.close()
        store.close(described)
    except (Improper, NotReached, Unconverged) as failure:
        return Outcome(stratum, str(failure))
    except StratumFinished:
        return Outcome(stratum, None)
    finally:
        _finished(fit, stratum)
    return Outcome(stratum, None)


def protect_batch(fit: Fit, strata: range) -> list[Outcome]:
    """Runs all rounds of every stratum of a batch, and stores their by-products with one completion record.

    If a stratum fails, nothing of the batch is finished.
    """
    store, outcomes = fit.batch_store(strata), list[Outcome]()
    try:
        for stratum in strata:
            member, failure = store.member(stratum), None
            try:
                member.release(_described(fit, stratum, member, member.block))
            except (Improper, NotReached, Unconverged) as error:
                failure = str(error)
            finally:
                _finished(fit, stratum)
            outcomes.append(Outcome(stratum, failure))
        if all(outcome.failure is None for outcome in outcomes):
            store.close()
    except StratumFinished:
        return [Outcome(stratum, None) for stratum in strata]
    return outcomes


def _described(
    fit: Fit, stratum: int, store: StratumStore | MemberStore, recorder: Callable[[int], BlockRecorder]
) -> list[Mapping[str, Any]]:
    """Runs all rounds of a stratum in memory. Returns the released parameters of every set, in public form."""
    model, numbers = fit.fitted(stratum), fit.layout.blocks.of_stratum(stratum)
    recorders = [recorder(fit.block_start(stratum, number)) for number in numbers]
    rounds, label = fit.rounds(model, store), fit.crosstab.stratum_labels[stratum]
    records, noise = fit.records(numbers), fit.noise(stratum)
    released = run_rounds(rounds, model, fit.sampler, fit.key, label, records, recorders, noise)
    return [model.describe(theta) for theta in released.parameters]


def _finished(fit: Fit, stratum: int) -> None:
    """Notes that a stratum was tried, for all strata alike, because which stratum failed depends on the records."""
    beat()
    note("stratum", {"fit": fit.address.name, "stratum": stratum})


@dataclass(frozen=True)
class VisitPart:
    """Task that runs one pass over one span of a giant stratum. It stores the span's carry first, and then its result."""

    address: Address
    stratum: int
    round: int

    def __call__(self, part: int) -> int:
        fit = self.address.open()
        journal = journal_of(fit, self.stratum)
        if journal.finished(self.round, part):
            return part
        journal.store.take(journal.request(self.round), anew=True)
        request: Pass = pickle.loads(journal.request(self.round).read_bytes())
        numbers = fit.layout.spans(self.stratum)[part]
        blocks = fit.records(numbers)
        carry = journal.block_state(self.round - 1, part) if self.round else {}
        edges = np.concatenate([[0], np.cumsum([len(block) for block in blocks])])
        slices = [slice(int(a), int(b)) for a, b in pairwise(edges)]
        carries: list[Carry] = [{name: values[rows] for name, values in carry.items()} for rows in slices]
        store = fit.store(self.stratum).part(part)
        recorders = [store.block(fit.block_start(self.stratum, number)) for number in numbers]
        partial = visit_blocks(request, blocks, carries, recorders)
        recorded = store.close()
        names = sorted(carries[0])
        with replaced(journal.carry(self.round, part), durable=False) as temporary, temporary.open("wb") as handle:
            np.save(handle, np.array([np.concatenate([block[name] for block in carries]) for name in names]))
        outputs = recorded | checksums([journal.carry(self.round, part)], journal.confidential)
        with replaced(journal.result(self.round, part)) as temporary, temporary.open("wb") as handle:
            np.savez(handle, partial=partial, names=names, left=json.dumps(outputs))
        byproducts = [journal.confidential / name for name in outputs]
        for paths in (byproducts, [journal.result(self.round, part)]):
            journal.store.keep(paths)
            journal.store.forget(paths)
        return part

    def unit(self, part: int) -> dict[str, int | str]:
        blocks = self.address.open().layout.spans(self.stratum)[part]
        return {"fit": self.address.name, "stratum": self.stratum, "block": blocks.start, "blocks": len(blocks)}


def protect_giant(fit: Fit, stratum: int, workers: Executor, tick: Callable[[int], None]) -> Outcome:
    """Runs the rounds of a giant stratum from the driver, with a task for each span.

    It resumes after the last round that the journal has finished.
    """
    journal = journal_of(fit, stratum)
    model, store, spans = fit.fitted(stratum), fit.store(stratum), fit.layout.spans(stratum)
    if not journal.sound(len(spans)):
        journal.remove()
    journal.folder.mkdir(parents=True, exist_ok=True)
    round = -1

    def visit(request: Pass) -> Floats:
        nonlocal round
        round += 1
        if not journal.store.take(journal.total(round)):
            with replaced(journal.request(round)) as temporary:
                temporary.write_bytes(pickle.dumps(request))
            journal.store.keep([journal.request(round)])
            for _ in workers.map(VisitPart(fit.address, stratum, round), range(len(spans))):
                tick(0)
            partials = journal.partials(round, len(spans))
            with replaced(journal.total(round)) as temporary, temporary.open("wb") as handle:
                np.savez(handle, total=combine(request, partials))
            journal.store.keep([journal.total(round)])
            journal.clear(round)
        return entry(journal.total(round), "total")

    try:
        label, noise = fit.crosstab.stratum_labels[stratum], fit.noise(stratum)
        released = drive(fit.rounds(model, store), model, fit.sampler, fit.key, label, visit, noise)
    except (Improper, NotReached, Unconverged) as failure:
        return Outcome(stratum, str(failure))
    elsewhere = {} if journal.store.shared else journal.recorded(round, len(spans))
    store.close([model.describe(theta) for theta in released.parameters], elsewhere)
    journal.remove()
    return Outcome(stratum, None)


def released_by(fit: Fit, batch: range) -> list[dict[str, Any]]:
    """Reads what every stratum of a finished batch has released: its summary, and the parameters θ of each set."""
    alone, folder = fit.layout.batch_strata == 1, fit.folder(batch.start)
    content = json.loads((folder / ("stratum.json" if alone else "strata.json")).read_text(encoding="utf-8"))
    return [content] if alone else list(content)


def fit_error(fit: Fit, outcome: Outcome) -> FitError:
    k = outcome.stratum
    return FitError(
        f"{fit.crosstab.stratum_labels[k]} (n = {int(fit.crosstab.stratum_count[k])}, p = {fit.model(k).identified})",
        outcome.failure or "failed",
        _remedies(fit),
    )


def _remedies(fit: Fit) -> str:
    job, fallback_taken = fit.job, fit.job.mechanism.fallback
    ways = []
    if job.frozen and job.mechanism.tunes_weights:
        calibrated = "" if job.calibration is None else "leave calibration out and state its constants with a "
        ways.append(f"{calibrated}lower mechanism.aim")
    if fit.crosstab.strata:
        ways.append("pool strata (strata: []" + (")" if job.strict else " or mechanism.fallback: pool)"))
    if job.likelihood_predictors:
        ways.append("drop predictors")
    if fallback_taken != "proper_prior" and fit.model(0).improper:
        fallback = "" if job.strict else "mechanism.fallback: proper_prior or "
        ways.append(f"take a proper prior ({fallback}model.prior: {{name: proper}})")
    return ", ".join([*ways, "or raise the budget"]) if ways else "raise the budget"
