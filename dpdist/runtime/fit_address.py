"""Addresses of fits for `runtime.tasks` and `audit`: a task carries address and key, and opens the fit's files."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab, Floats, Ints
from dpdist.engine.protocol import Learned, Noise, Rounds
from dpdist.estimation.crosstab_table import crosstab_from_table
from dpdist.estimation.donors import AbsentRecords, History, PeriodTotals, read_history
from dpdist.job import Job
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import StratumModel, fixed_model
from dpdist.planning.blocks import Layout
from dpdist.sampling import PosteriorSampler, completed, sampler_of
from dpdist.storage.byproducts import BatchStore, MemberStore, StratumStore
from dpdist.storage.noise_once import noise_once
from dpdist.storage.tables import each_block, read_rows, read_table, rows_at
from dpdist.storage.workspace import NOISY_FRAME, OF_FILES, REFERENCE, STORED_REFERENCE, STORES_FORM, Workspace

FitName = Literal["strata", "proper", "pooled"]


@dataclass(frozen=True)
class Address:
    """The place and name of a fit. `run` distinguishes one run from a later run in the same folder."""

    place: str
    run: str
    name: FitName

    def open(self) -> Fit:
        """Opens the fit. A process opens each fit only once."""
        return _open(self)


@dataclass(frozen=True)
class Fit:
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
        return completed(model, self.sampler)

    def fitted(self, stratum: int) -> StratumModel:
        """The model with what was learned from the reference, if this has been computed."""
        return fixed_model(self.model(stratum), self.learned(stratum) if self.job.has_reference else None)

    def rounds(self, model: StratumModel, store: StratumStore | MemberStore) -> Rounds:
        learned = self.learned(store.stratum) if self.job.has_reference else None
        return mechanism_of(self.job).protect(self.job, model, store, learned)

    def learned(self, stratum: int) -> Learned:
        path = self.space.learned(self.address.name, stratum)
        self.space.store.take(path)
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
        if not self.job.mechanism.donates:
            return None
        return self._absent.within(
            {name: int(self.crosstab.codes[name][self.crosstab.rows_of(stratum).start]) for name in self.crosstab.strata}
        )

    def history(self, stratum: int) -> tuple[PeriodTotals, ...]:
        """A stratum's totals of earlier periods, if the reference is a release that states them."""
        if not (self.job.carries and self.job.mechanism.states_totals):
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

        def kept(request: Noise) -> Floats:
            return noise_once(self.space, self.space.noise(self.address.name, stratum, request.set), request)

        return kept

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

    def done(self, strata: Iterable[int]) -> set[int]:
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


def open_fit(space: Workspace, key: Key, name: FitName) -> Fit:
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
def _open(address: Address) -> Fit:
    space = Workspace.of_run(address.place, address.run)
    space.take_units(["records", STORED_REFERENCE, NOISY_FRAME])
    space.store.take(space.key)
    job = _job(space)
    crosstab = crosstab_from_table(read_table(space.crosstab))
    seen = crosstab if not job.noisy_crosstab else crosstab_from_table(read_table(space.noisy_crosstab))
    if address.name == "pooled":
        crosstab, seen = crosstab.pooled(), seen.pooled()
    key = Key.from_hex(space.key.read_text(encoding="ascii")).child(address.name)
    fit = Fit(address, space, job, seen, key, Layout.of(job, crosstab))
    space.take_units([fit.stores])
    return fit
