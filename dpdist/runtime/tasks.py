"""Tasks, with the addresses that they carry: small strata together, giant ones in rounds."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from dpdist.confidential.records import Records
from dpdist.core.errors import FitError
from dpdist.core.files import replaced
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab, Floats, Ints
from dpdist.core.sharing import using_workers
from dpdist.core.this_process import return_memory
from dpdist.engine.protocol import (
    BlockRecorder,
    Carry,
    Learned,
    Noise,
    Pass,
    Rounds,
    combine,
    drive,
    run_rounds,
    visit_blocks,
)
from dpdist.estimation.crosstab_table import crosstab_from_table
from dpdist.estimation.donors import AbsentRecords, History, PeriodTotals, read_history
from dpdist.job import Job
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Improper, StratumModel, fixed_model
from dpdist.planning.blocks import Layout
from dpdist.privacy.weights import NotReached
from dpdist.runtime.attempts import beat, note
from dpdist.runtime.executors import Executor
from dpdist.runtime.sharing import pieces_on
from dpdist.sampling import PosteriorSampler, Unconverged, sampler_of
from dpdist.storage.byproducts import BatchStore, MemberStore, StratumFinished, StratumStore
from dpdist.storage.noise_once import noise_once
from dpdist.storage.store import Store, checksums
from dpdist.storage.tables import each_block, read_rows, read_table, rows_at
from dpdist.storage.workspace import NOISY_FRAME, OF_FILES, REFERENCE, STORED_REFERENCE, STORES_FORM, Workspace

FitName = Literal["strata", "proper", "pooled"]


@dataclass(frozen=True)
class Address:
    """The place and name of a fit. `run` distinguishes one run from a later run in the same folder."""

    place: str
    run: str
    name: FitName

    def open(self) -> JobFit:
        """Opens the fit. A process opens each fit only once."""
        return _open(self)


@dataclass(frozen=True)
class JobFit:
    """One fit of a job: of every stratum, of some strata under the proper prior, or of all strata pooled."""

    address: Address
    space: Workspace
    job: Job
    crosstab: Crosstab
    """The crosstab in its published form. Where predictors are protected, its counts are noisy."""
    key: Key
    layout: Layout
    """The layout of the stored records. It always follows from their exact numbers."""

    @cached_property
    def strata(self) -> range:
        return range(len(self.crosstab.stratum_labels))

    @cached_property
    def sampler(self) -> PosteriorSampler:
        return sampler_of(self.job, self.space.fits)

    def model(self, stratum: int) -> StratumModel:
        build = builder_of(self.job).build
        model = build(self.job, self.crosstab, self.crosstab.rows_of(stratum), proper=self.address.name == "proper")
        return self.sampler.complete(model)

    def fitted(self, stratum: int) -> StratumModel:
        """The model with what was learned from the reference, if this has been computed."""
        return fixed_model(self.model(stratum), self.learned(stratum) if self.job.has_reference else None)

    def rounds(self, model: StratumModel, store: StratumStore | MemberStore) -> Rounds:
        learned = self.learned(store.stratum) if self.job.has_reference else None
        return mechanism_of(self.job).protect(self.job, model, store, learned)

    def learned(self, stratum: int) -> Learned:
        path = self.space.learned(self.address.name, stratum)
        self.space.store.download(path)
        with path.open("rb") as file:
            return pickle.load(file)

    @cached_property
    def reference_key(self) -> Key:
        """A key from the reference's content, so that every run learns the same from the same reference."""
        identity = self.space.read_identity()
        assert identity is not None
        return Key.from_hex(identity.job[REFERENCE]).child(f"reference {self.address.name}")

    @cached_property
    def _reference_edges(self) -> Ints:
        sizes, stratum = np.zeros(len(self.strata), dtype=np.int64), self.crosstab.stratum
        for records in each_block(self.space.reference):
            sizes += np.bincount(stratum[records.row], minlength=len(sizes))
        return np.concatenate([[0], np.cumsum(sizes)])

    def reference_records(self, stratum: int) -> Records:
        start, stop = self._reference_edges[[stratum, stratum + 1]].tolist()
        return read_rows(self.space.reference, start, stop)

    def copied(self, records: Records) -> pa.Table | None:
        """Columns of these reference records that synthetic records copy, in the same order; None if the job copies
        none.
        """
        return rows_at(self.space.copied, records.record) if self.job.microdata.columns else None

    def absent(self, stratum: int) -> AbsentRecords | None:
        """A stratum's reference records in crosses that the current file lacks; None if the mechanism learns nothing from
        them.
        """
        if self.job.mechanism.sets != "copied":
            return None
        return self._absent.within(
            {name: int(self.crosstab.codes[name][self.crosstab.rows_of(stratum).start]) for name in self.crosstab.strata}
        )

    def history(self, stratum: int) -> tuple[PeriodTotals, ...]:
        """A stratum's totals of earlier periods, if the reference is a release that states them."""
        if not (self.job.carries and self.job.mechanism.uses("reference.release")):
            return ()
        return self._history.get(self.crosstab.stratum_labels[stratum], ())

    @cached_property
    def _absent(self) -> AbsentRecords:
        return AbsentRecords.from_table(read_table(self.space.absent), self.job.outcomes)

    @cached_property
    def _history(self) -> History:
        path = self.space.history
        return read_history(path.parent, path.name, len(self.job.cell_columns), len(self.job.outcomes))

    def noise(self, stratum: int) -> Callable[[Noise], Floats]:
        """Returns a function that gives a stratum's noise for a request: the stored noise, or new noise that it stores.

        Stored noise is given only for the sums for which it was drawn.
        """

        def stored_noise(request: Noise) -> Floats:
            return noise_once(self.space, self.space.noise(self.address.name, stratum, request.set), request)

        return stored_noise

    def records(self, blocks: range) -> list[Records]:
        edges = self.layout.blocks.edges
        first = edges[blocks.start]
        records = read_rows(self.space.records, first, edges[blocks.stop])
        return [records.part(edges[n] - first, edges[n + 1] - first) for n in blocks]

    def store(self, stratum: int) -> StratumStore:
        axis, log_lik = self.layout.axis, self.layout.log_lik
        return StratumStore(self.space, self.address.name, stratum, axis, log_lik, self.model(stratum).parameters)

    def batch_store(self, strata: range) -> BatchStore:
        parameters, chains = self.model(strata.start).parameters, self.job.sampler.number_of_chains
        return BatchStore(
            self.space, self.unit(strata.start), strata, self.layout.axis, self.layout.log_lik, parameters, chains
        )

    def block_start(self, stratum: int, block: int) -> int:
        edges = self.layout.blocks.edges
        return edges[block] - edges[self.layout.blocks.first[stratum]]

    def folder(self, stratum: int) -> Path:
        """The folder with the results of a stratum, or of its batch."""
        return self.space.parts / self.unit(stratum)

    def unit(self, stratum: int) -> str:
        """Name of the completion record of a stratum, or of its batch if that has several strata."""
        size = self.layout.batch_strata
        return self.space.part(self.address.name, stratum // size).name + of_size(size)

    def finished(self, strata: Iterable[int]) -> set[int]:
        """Strata with a completion record, all of whose files are complete."""
        units: dict[str, list[int]] = {}
        for k in strata:
            units.setdefault(self.unit(k), []).append(k)
        return {k for unit in self.space.finished_of(units) for k in units[unit]}

    @property
    def stores(self) -> str:
        """Name of the completion record that the stores of draws were created."""
        kind = "pooled" if self.address.name == "pooled" else "strata"
        return f"stores-{kind}-{STORES_FORM}{of_size(self.layout.batch_strata)}"


def of_size(batch: int) -> str:
    """The end of names of units that depend on the number of strata in a batch."""
    return "" if batch == 1 else f"x{batch}"


def open_fit(space: Workspace, key: Key, name: FitName) -> JobFit:
    """Opens a fit in a workspace that holds the records."""
    run = key.child("run").hex()[:16] + space.store.view
    return Address(space.opened_for(run).place, run, name).open()


def _job(space: Workspace) -> Job:
    """Reads the job for a task. The job decides how much noise is drawn, so it must not have changed.

    Raises `WorkspaceError` unless it is the job with which the run began, even if the file matches its completion record.
    """
    job = Job.stored(space.job.read_text(encoding="utf-8"))
    began = space.read_identity()
    if began is None or job.identity != {
        name: setting for name, setting in began.job.items() if not name.startswith(OF_FILES)
    }:
        raise space.damaged(space.job, "is not the job that the run began with")
    return job


@lru_cache(maxsize=3)
def _open(address: Address) -> JobFit:
    space = Workspace.of_run(address.place, address.run)
    space.take_units(["records", STORED_REFERENCE, NOISY_FRAME])
    space.store.download(space.key)
    job = _job(space)
    crosstab = crosstab_from_table(read_table(space.crosstab))
    public_crosstab = crosstab if not job.noisy_crosstab else crosstab_from_table(read_table(space.noisy_crosstab))
    if address.name == "pooled":
        crosstab, public_crosstab = crosstab.pooled(), public_crosstab.pooled()
    key = Key.from_hex(space.key.read_text(encoding="ascii")).child(address.name)
    fit = JobFit(address, space, job, public_crosstab, key, Layout.of(job, crosstab))
    space.take_units([fit.stores])
    return fit


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
        return self._whole(path) and self.store.intact(self.files_of(round, part), self.confidential)

    def sound(self, spans: int) -> bool:
        """True if all totals are complete, and so are all files of the last finished round."""
        rounds = 0
        while self.store.download(self.total(rounds)):
            rounds += 1
        earlier_spans = (self.finished(rounds - 1, span) for span in range(spans) if rounds)
        return all(_readable(self.total(round)) for round in range(rounds)) and all(earlier_spans)

    def files_of(self, round: int, part: int) -> dict[str, str]:
        """The files that a span wrote in a finished round, with their checksums."""
        with np.load(self.result(round, part)) as file:
            files: dict[str, str] = json.loads(str(file["left"]))
            return files

    def partials(self, round: int, spans: int) -> Iterator[Floats]:
        """Reads the results of all spans in a finished round, one after another."""
        paths = [self.result(round, span) for span in range(spans)]
        self.store.download_all(paths)
        return (entry(path, "partial") for path in paths)

    def download_carry(self, round: int, part: int) -> None:
        """Copies a span's complete result and carry from the store to this workspace."""
        self.store.download(self.result(round, part), anew=True)
        name = str(self.carry(round, part).relative_to(self.confidential))
        self.store.download_files({name: self.files_of(round, part)[name]}, self.confidential)

    def block_state(self, round: int, part: int) -> Carry:
        """Opens the carry of a span after a round; it is memory-mapped, because a pass need not read all of it."""
        if not self.store.shared:
            self.download_carry(round, part)
        with np.load(self.result(round, part)) as file:
            names = file["names"].tolist()
        return dict(zip(names, np.asarray(np.load(self.carry(round, part), mmap_mode="r")), strict=True))

    def recorded(self, round: int, spans: int) -> dict[str, str]:
        folder = str(self.folder.relative_to(self.confidential))
        entries = [entry for span in range(spans) for entry in self.files_of(round, span).items()]
        return {name: digest for name, digest in entries if not name.startswith(f"{folder}/")}

    def clear(self, before: int) -> None:
        """Deletes the files that spans wrote in rounds before `before`."""
        for round in range(before):
            for path in self.folder.glob(f"{round:03d}-*.np?"):
                path.unlink()
        self.store.delete([self.folder / name for name in self.store.names(self.folder) if _of_part(name) < before])

    def remove(self) -> None:
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.store.delete([self.folder])

    def _whole(self, path: Path) -> bool:
        return self.store.download(path) and _readable(path)


def journal_of(fit: JobFit, stratum: int) -> Journal:
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


def protect_unfinished(fit: JobFit, strata: Sequence[int]) -> list[Outcome]:
    finished, outcomes = fit.finished(strata), list[Outcome]()
    for batch in dict.fromkeys(map(fit.layout.batch_of, strata)):
        if batch.start in finished:
            outcomes += [Outcome(stratum, None) for stratum in batch]
        elif fit.layout.batch_strata == 1:
            outcomes.append(protect_small(fit, batch.start))
        else:
            outcomes += protect_batch(fit, batch)
    return outcomes


def protect_small(fit: JobFit, stratum: int) -> Outcome:
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


def protect_batch(fit: JobFit, strata: range) -> list[Outcome]:
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
    fit: JobFit, stratum: int, store: StratumStore | MemberStore, recorder: Callable[[int], BlockRecorder]
) -> list[Mapping[str, Any]]:
    """Runs all rounds of a stratum in memory. Returns the released parameters of every set, in public form."""
    model, numbers = fit.fitted(stratum), fit.layout.blocks.of_stratum(stratum)
    recorders = [recorder(fit.block_start(stratum, number)) for number in numbers]
    rounds, label = fit.rounds(model, store), fit.crosstab.stratum_labels[stratum]
    records, noise = fit.records(numbers), fit.noise(stratum)
    released = run_rounds(rounds, model, fit.sampler, fit.key, label, records, recorders, noise)
    return [model.describe(theta) for theta in released.parameters]


def _finished(fit: JobFit, stratum: int) -> None:
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
        journal.store.download(journal.request(self.round), anew=True)
        with journal.request(self.round).open("rb") as handle:
            request: Pass = pickle.load(handle)
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
            journal.store.upload(paths)
            journal.store.discard(paths)
        return part

    def unit(self, part: int) -> dict[str, int | str]:
        blocks = self.address.open().layout.spans(self.stratum)[part]
        return {"fit": self.address.name, "stratum": self.stratum, "block": blocks.start, "blocks": len(blocks)}


def protect_giant(fit: JobFit, stratum: int, workers: Executor, tick: Callable[[int], None]) -> Outcome:
    """Runs the rounds of a giant stratum from the driver, with a task for each span.

    It resumes after the last round that the journal has finished. Work between rounds has pieces, which are tasks, too.
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
        if not journal.store.download(journal.total(round)):
            with replaced(journal.request(round)) as temporary, temporary.open("wb") as handle:
                pickle.dump(request, handle)
            journal.store.upload([journal.request(round)])
            for _ in workers.map(VisitPart(fit.address, stratum, round), range(len(spans))):
                tick(0)
            partials = journal.partials(round, len(spans))
            with replaced(journal.total(round)) as temporary, temporary.open("wb") as handle:
                np.savez(handle, total=combine(request, partials))
            journal.store.upload([journal.total(round)])
            journal.clear(round)
        return_memory()
        return entry(journal.total(round), "total")

    try:
        label, noise = fit.crosstab.stratum_labels[stratum], fit.noise(stratum)
        with pieces_on(workers, fit.space) as pieces, using_workers(pieces):
            released = drive(fit.rounds(model, store), model, fit.sampler, fit.key, label, visit, noise)
    except (Improper, NotReached, Unconverged) as failure:
        return Outcome(stratum, str(failure))
    elsewhere = {} if journal.store.shared else journal.recorded(round, len(spans))
    store.close([model.describe(theta) for theta in released.parameters], elsewhere)
    journal.remove()
    return Outcome(stratum, None)


def released_by(fit: JobFit, batch: range) -> list[dict[str, Any]]:
    """Reads what every stratum of a finished batch has released: its summary, and the parameters θ of each set."""
    alone, folder = fit.layout.batch_strata == 1, fit.folder(batch.start)
    content = json.loads((folder / ("stratum.json" if alone else "strata.json")).read_text(encoding="utf-8"))
    return [content] if alone else list(content)


def fit_error(fit: JobFit, outcome: Outcome) -> FitError:
    k = outcome.stratum
    return FitError(
        f"{fit.crosstab.stratum_labels[k]} (n = {int(fit.crosstab.stratum_count[k])}, p = {fit.model(k).identified})",
        outcome.failure or "failed",
        _remedies(fit),
    )


def _remedies(fit: JobFit) -> str:
    job, fallback_taken = fit.job, fit.job.mechanism.fallback
    ways = []
    if job.frozen and job.mechanism.weighting == "tuned":
        calibrated = "" if job.calibration is None else "leave calibration out and state its constants with a "
        ways.append(f"{calibrated}lower mechanism.aim")
    if fit.crosstab.strata:
        ways.append("pool strata (strata: []" + (")" if job.strict else " or mechanism.fallback: pool)"))
    if job.likelihood_predictors:
        ways.append("drop predictors")
    if fallback_taken != "proper_prior" and fit.model(0).improper:
        fallback = "" if job.strict else "mechanism.fallback: proper_prior or "
        ways.append(f"use a proper prior ({fallback}model.prior: {{name: proper}})")
    return ", ".join([*ways, "or raise the budget"]) if ways else "raise the budget"
