"""Weighted marginals on NSCG beside opendp's MST and AIM: ten columns, ε = 1, one record switched off or added.

    python experiments/marginals_nscg.py prepare --data FOLDER --work WORK
    OTHER/python experiments/marginals_opendp.py WORK …     in an environment of its own: pip install 'opendp[mbi]'
    python experiments/marginals_nscg.py measure --work WORK [--replicates R]
    python experiments/marginals_nscg.py halves --work WORK [--replicates R]
    python experiments/marginals_nscg.py sums --work WORK [--replicates R]

`measure` prints total variation of weighted 1-, 2- and 3-way marginals, and errors of means in direct standard errors. Of
releases of marginals also the share of 90 % intervals in marginals.parquet that hold the file's own weighted
count, and the same of counts with clipped weights. Then all of this for the file without weights, on which all tools do
the same.

`halves` releases a random half of the file, without and with the other half as reference, and prints the same shares. The
reference's weights are as they are, all larger by a fifth, or with a heavier tail.

`sums` releases the file without and with sums of values beside counts, at the same ε: of the ten columns, and of these
with age in years and salary in thousands. It prints the same errors, and those against clipped weights, which are of
noise and of pairs that were not measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

import numpy as np
import pandas as pd

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab, Floats
from dpdist.engine.protocol import noise_of, run_rounds
from dpdist.estimation.estimators import NORMAL_90
from dpdist.job.loading import parse_job
from dpdist.mechanisms.marginals.coded_tables import CodedTables, errors_of_counts
from dpdist.mechanisms.marginals.fitting import ReferenceWeights
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.quality.microdata import RecordCodes, total_variation
from dpdist.sampling.samplers import IndependentSampler

COLUMNS = (
    *("age_group", "sex", "highest_degree", "degree_field", "employment_status", "job_satisfaction"),
    *("race_ethnicity", "us_citizen", "highest_degree_from_us", "children_in_household"),
)
CAP = 2000
"""Public upper bound of weights: a fiftieth of the records lie above it."""


class Unwatched:
    def posterior(self, fit: str, draws: object) -> None: ...

    def summary(self, values: object) -> None: ...


def prepare(data: Path, work: Path) -> None:
    """Codes of the ten columns, people without a job in a level of their own, and weights."""
    read = pd.read_parquet(data / "nscg2013.parquet")
    made = pd.DataFrame({name: read[name].cat.codes.astype(int) for name in COLUMNS})
    missing = made["job_satisfaction"] < 0
    made.loc[missing, "job_satisfaction"] = made["job_satisfaction"].max() + 1
    assert (made.min() == 0).all()
    made["weight"] = read["weight"].astype(float)
    work.mkdir(exist_ok=True, parents=True)
    made.to_parquet(work / "coded.parquet")
    numeric = made.assign(age=read["age"].astype(int) - int(read["age"].min()))
    numeric["salary"] = (read["salary"].fillna(0) // 1000).astype(int)
    numeric.to_parquet(work / "numeric.parquet")


def job_text(
    sizes: dict[str, int], adjacency: str, selection: str, cap: float, reference: bool, sums: Collection[str] = ()
) -> str:
    columns = "".join(
        f"  {name}: {{bounds: [0, {size - 1}], whole: true, outside: clip}}\n" for name, size in sizes.items()
    )
    of_values = f", sums: [{', '.join(f'{{of: {name}}}' for name in sums)}]" if sums else ""
    return (
        f'dataset: nscg\nperiod: "2013"\ncolumns:\n{columns}  weight: {{bounds: [0, {cap}], outside: clip}}\n'
        f"survey: {{weight: weight}}\noutcome: [{', '.join(sizes)}]\n"
        f"mechanism: {{name: marginals, select: {selection}{of_values}}}\n"
        f'budget: {{epsilon: "1", adjacency: {adjacency}}}\ntables: [{{name: t, statistics: [count]}}]\n'
        + ("reference: {path: other_half.parquet, provenance: a half of a public file}\n" if reference else "")
    )


class Made(NamedTuple):
    """Synthetic records, and by cell: errors of the fitted counts in standard errors, plain and against clipped counts."""

    records: RecordCodes
    off: Floats
    off_clipped: Floats

    def held(self) -> dict[str, float]:
        """Shares of 90 % intervals that hold the file's own counts, plain and clipped."""
        shares = [float((np.abs(each) <= NORMAL_90).mean()) for each in (self.off, self.off_clipped)]
        return dict(zip(("held", "held_clipped"), shares, strict=True))


def placed(held: pd.DataFrame, names: list[str]) -> Records:
    row = np.zeros(len(held), np.int32)
    return Records(np.arange(len(held)), row, held[names].to_numpy(float), held["weight"].to_numpy(), row - 1)


def ours(
    held: pd.DataFrame,
    sizes: dict[str, int],
    replicate: int,
    adjacency: str,
    selection: str,
    cap: float = CAP,
    reference: pd.DataFrame | None = None,
    sums: Collection[str] = (),
) -> Made:
    """A release under keyed noise: its records, and how far its counts are from the file's."""
    said = job_text(sizes, adjacency, selection, cap, reference is not None, sums)
    job, n, names = parse_job(said), len(held), list(sizes)
    key, weights = Key(f"marginals {replicate} {adjacency}".encode()), held["weight"].to_numpy()
    records = placed(held, names)
    model = builder_of(job).build(job, Crosstab({}, {}, np.array([n]), (), ()), slice(0, 1))
    assert isinstance(model, CodedTables)
    told = placed(reference, names) if reference is not None else None
    learned = ReferenceWeights(model.codes_of(told), told.weight) if told is not None else None
    rounds = MECHANISMS["marginals"].protect(job, model, Unwatched(), learned)
    theta = run_rounds(rounds, model, IndependentSampler(1), key, "all", [records], noise=noise_of(key)).parameters[0]
    found, weight = model.simulate(theta, records.row, key.generator("synthesis"))
    codes, fitted = held[names].to_numpy(np.int64), model.fitted(theta)
    off = [list[Floats](), list[Floats]()]
    for table in model.noise_of(theta):
        wanted, errors = fitted.table(table).ravel(), errors_of_counts(model, theta, table)
        cell = model.cell(codes, table)
        for own, each in zip(off, (weights, np.minimum(weights, cap)), strict=True):
            own.append((wanted - np.bincount(cell, weights=each, minlength=len(wanted))) / errors)
    return Made(RecordCodes(found.astype(np.int64), tuple(sizes.values()), weight), *(np.concatenate(each) for each in off))


def errors(own: RecordCodes, other: RecordCodes) -> dict[str, float]:
    """Total variation by order, and the mean error of columns' means in direct standard errors."""
    found = {f"tv_{order}": float(total_variation(own, other, order).mean()) for order in (1, 2, 3)}
    return found | {"means": float(np.mean(_of_means(own, other)))}


def _of_means(own: RecordCodes, other: RecordCodes) -> list[Floats]:
    made = []
    for k in range(len(own.sizes)):
        mean = np.average(own.codes[:, k], weights=own.weight)
        error = np.sqrt((own.weight**2 * (own.codes[:, k] - mean) ** 2).sum()) / own.weight.sum()
        made.append(abs(np.average(other.codes[:, k], weights=other.weight) - mean) / error)
    return made


def sizes_of(held: pd.DataFrame) -> dict[str, int]:
    return {name: int(held[name].max()) + 1 for name in held.columns if name != "weight"}


def coded(held: pd.DataFrame) -> RecordCodes:
    sizes = sizes_of(held)
    return RecordCodes(held[list(sizes)].to_numpy(np.int64), tuple(sizes.values()), held["weight"].to_numpy())


def releases(held: pd.DataFrame, cap: float, replicates: int) -> Iterator[dict[str, Any]]:
    """A row for each release of ours, against the file's own marginals."""
    own = coded(held)
    for adjacency, selection in product(("zero_out", "substitution"), ("tree", "adaptive")):
        for replicate in range(replicates):
            began = time.process_time()
            made = ours(held, sizes_of(held), replicate, adjacency, selection, cap)
            seconds = time.process_time() - began
            told = {"mechanism": f"marginals, {selection}, {adjacency}", "seconds": seconds}
            yield told | errors(own, made.records) | made.held()


def others(own: RecordCodes, work: Path) -> Iterator[dict[str, Any]]:
    """A row for each release of opendp's."""
    for path in sorted(work.glob("opendp-*.parquet")):
        levels = pd.read_parquet(path)[list(COLUMNS)].dropna()  # opendp adds a level for what is in no list
        other = RecordCodes(levels.to_numpy(np.int64), own.sizes, np.ones(len(levels)))
        told = json.loads(path.with_suffix(".json").read_text())
        yield {name: told[name] for name in ("mechanism", "seconds", "mib")} | errors(own, other)


def shown(title: str, rows: Iterable[dict[str, Any]]) -> None:
    table = pd.DataFrame(rows)
    grouped = table.groupby("mechanism", sort=False)
    print(f"\n{title}\n{grouped.mean().assign(releases=grouped.size()).round(4).to_string()}", flush=True)


def measure(work: Path, replicates: int) -> None:
    held = pd.read_parquet(work / "coded.parquet")
    own = coded(held)
    capped = own._replace(weight=np.minimum(own.weight, CAP))
    exact = [
        {"mechanism": "no noise, weights clipped", **errors(own, capped)},
        {"mechanism": "no noise, weights ignored", **errors(own, own.unweighted)},
    ]
    shown("weighted", [*releases(held, CAP, replicates), *exact, *others(own, work)])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"peak of this process: {peak:.0f} MiB; records above the bound: {(held['weight'] > CAP).mean():.3f}")
    once = [row for row in others(own.unweighted, work) if row["mechanism"].endswith("unweighted")]
    shown("without weights", [*releases(held.assign(weight=1.0), 1, replicates), *once])


CHANGES: dict[str, Callable[[pd.Series], pd.Series]] = {
    "other half as it is": lambda weight: weight,
    "its weights larger by a fifth": lambda weight: 1.2 * weight,
    "its tail heavier": lambda weight: weight**1.05,
    "its tail lighter": lambda weight: weight**0.95,
}


def halves(work: Path, replicates: int) -> None:
    held, rows = pd.read_parquet(work / "coded.parquet"), list[dict[str, Any]]()
    for replicate in range(replicates):
        first = np.random.default_rng(replicate).random(len(held)) < 0.5
        own, other = held[first], held[~first]
        drifted = {name: other.assign(weight=change(other["weight"])) for name, change in CHANGES.items()}
        for name, reference in {"no reference": None, **drifted}.items():
            made = ours(own, sizes_of(held), replicate, "zero_out", "tree", CAP, reference)
            total = made.records.weight.sum() / own["weight"].sum()
            rows.append({"mechanism": name, **made.held(), "total": total, **errors(coded(own), made.records)})
    shown("halves, tree, zero_out; total: weights of the records over the file's own", rows)


NUMERIC = ("age", "salary")


def sums(work: Path, replicates: int) -> None:
    """Every file without sums, with sums of all its columns, and with those of its two numeric columns."""
    for file in ("coded", "numeric"):
        held, rows = pd.read_parquet(work / f"{file}.parquet"), list[dict[str, Any]]()
        names = list(sizes_of(held))
        asked = {"counts alone": (), "sums of all columns": names, "sums of age and salary": NUMERIC}
        own = coded(held)
        clipped = own._replace(weight=np.minimum(own.weight, CAP))
        for replicate, selection, (name, of) in product(range(replicates), ("tree", "adaptive"), asked.items()):
            if set(of) <= set(names):
                made = ours(held, sizes_of(held), replicate, "zero_out", selection, CAP, sums=of).records
                alone = {f"{key}, clipped": value for key, value in errors(clipped, made).items()}
                two = {each: _of_means(clipped, made)[names.index(each)] for each in NUMERIC if each in names}
                rows.append({"mechanism": f"{name}, {selection}", **errors(own, made), **alone, **two})
        shown(f"{file}, zero_out", rows)


STEPS: dict[str, Callable[[Path, int], None]] = {"measure": measure, "halves": halves, "sums": sums}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["prepare", *STEPS])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--replicates", type=int, default=5)
    said = parser.parse_args()
    prepare(said.data, said.work) if said.step == "prepare" else STEPS[said.step](said.work, said.replicates)
