"""Weighted marginals on NSCG beside opendp's MST and AIM: ten columns, ε = 1, one record switched off or added.

    python tests/studies/marginals_nscg.py prepare --data FOLDER --work WORK
    OTHER/python tests/studies/marginals_opendp.py WORK       in an environment of its own: pip install 'opendp[mbi]'
    python tests/studies/marginals_nscg.py measure --work WORK [--replicates R]

Prints total variation of weighted 1-, 2- and 3-way marginals, and errors of means in direct standard errors. Of releases of
weighted_marginals also the share of 90 % intervals in marginals.parquet that hold the file's own weighted count,
and the same of counts with clipped weights.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from dpdist.core.keys import Key
from dpdist.core.records import Floats, Frame, Records
from dpdist.engine.in_memory import noise_of, run_rounds
from dpdist.estimation.estimators import NORMAL_90
from dpdist.evaluation.microdata.coded import Coded
from dpdist.evaluation.microdata.marginals import total_variation
from dpdist.job.loading import parse_job
from dpdist.mechanisms.models import builder_of
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.sampling.exact import ExactSampler

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


def job_text(sizes: dict[str, int], adjacency: str, selection: str) -> str:
    columns = "".join(
        f"  {name}: {{bounds: [0, {size - 1}], whole: true, outside: clip}}\n" for name, size in sizes.items()
    )
    return (
        f'dataset: nscg\nperiod: "2013"\ncolumns:\n{columns}  weight: {{bounds: [0, {CAP}], outside: clip}}\n'
        f"survey: {{weight: weight}}\noutcome: [{', '.join(sizes)}]\n"
        f"mechanism: {{name: weighted_marginals, selection: {selection}}}\n"
        f'budget: {{epsilon: "1", adjacency: {adjacency}}}\ntables: [{{name: t, statistics: [count]}}]\n'
    )


def ours(held: pd.DataFrame, sizes: dict[str, int], replicate: int, adjacency: str, selection: str) -> tuple[Coded, Floats]:
    """A release's records under keyed noise; shares of its intervals that hold the file's counts, plain and clipped."""
    job, n = parse_job(job_text(sizes, adjacency, selection)), len(held)
    key = Key(f"marginals {replicate} {adjacency}".encode())
    values = held[list(sizes)].to_numpy(float)
    row = np.zeros(n, np.int32)
    records = Records(np.arange(n), row, values, held["weight"].to_numpy(), row - 1)
    model = builder_of(job).build(job, Frame({}, {}, np.array([n]), (), ()), slice(0, 1))
    rounds = MECHANISMS["weighted_marginals"].protect(job, model, Unwatched())
    theta = run_rounds(rounds, model, ExactSampler(1), key, "all", [records], noise=noise_of(key)).parameters[0]
    found, weight = model.simulate(theta, row, key.generator("synthesis"))  # type: ignore[attr-defined]
    codes, fitted, inside = held[list(sizes)].to_numpy(np.int64), model.fitted(theta), list[Floats]()  # type: ignore[attr-defined]
    weights = held["weight"].to_numpy()
    for table, scale in model.noise_of(theta).items():  # type: ignore[attr-defined]
        wanted = fitted.table(table).ravel()
        reach = NORMAL_90 * np.sqrt(2.0 * scale**2 + CAP * wanted)
        cell = model.cell(codes, table)  # type: ignore[attr-defined]
        exact = [np.bincount(cell, weights=each, minlength=len(wanted)) for each in (weights, np.minimum(weights, CAP))]
        inside.append(np.abs(wanted - np.array(exact)) <= reach)
    return Coded(found.astype(np.int64), tuple(sizes.values()), weight), np.concatenate(inside, axis=1).mean(axis=1)


def errors(own: Coded, other: Coded) -> dict[str, float]:
    """Total variation by order, and the mean error of columns' means in direct standard errors."""
    found = {f"tv_{order}": float(total_variation(own, other, order).mean()) for order in (1, 2, 3)}
    return found | {"means": float(np.mean(_of_means(own, other)))}


def _of_means(own: Coded, other: Coded) -> list[Floats]:
    made = []
    for k in range(len(own.sizes)):
        mean = np.average(own.codes[:, k], weights=own.weight)
        error = np.sqrt((own.weight**2 * (own.codes[:, k] - mean) ** 2).sum()) / own.weight.sum()
        made.append(abs(np.average(other.codes[:, k], weights=other.weight) - mean) / error)
    return made


def measure(work: Path, replicates: int) -> None:
    held = pd.read_parquet(work / "coded.parquet")
    sizes = {name: int(held[name].max()) + 1 for name in COLUMNS}
    own = Coded(held[list(COLUMNS)].to_numpy(np.int64), tuple(sizes.values()), held["weight"].to_numpy())
    rows = []
    for adjacency, selection in product(("zero_out", "substitution"), ("tree", "adaptive")):
        for replicate in range(replicates):
            began = time.process_time()
            other, covered = ours(held, sizes, replicate, adjacency, selection)
            seconds = time.process_time() - began
            name = f"weighted_marginals, {selection}, {adjacency}"
            rows.append(
                {
                    "mechanism": name,
                    "seconds": seconds,
                    **errors(own, other),
                    "held": covered[0],
                    "held_clipped": covered[1],
                }
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    capped = own._replace(weight=np.minimum(own.weight, CAP))
    rows.append({"mechanism": "no noise, weights clipped", **errors(own, capped)})
    rows.append({"mechanism": "no noise, weights ignored", **errors(own, own.unweighted)})
    for path in sorted(work.glob("opendp-*.parquet")):
        levels = pd.read_parquet(path)[list(COLUMNS)].dropna()  # opendp adds a level for what is in no list
        other = Coded(levels.to_numpy(np.int64), own.sizes, np.ones(1))
        other = other._replace(weight=np.ones(len(other.codes)))
        told = json.loads(path.with_suffix(".json").read_text())
        rows.append({"mechanism": told["mechanism"], "seconds": told["seconds"], "mib": told["mib"], **errors(own, other)})
    table = pd.DataFrame(rows).groupby("mechanism", sort=False).mean()
    print(table.round(4).to_string())
    print(f"peak of this process: {peak:.0f} MiB; records above the bound: {(held['weight'] > CAP).mean():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["prepare", "measure"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--replicates", type=int, default=5)
    said = parser.parse_args()
    prepare(said.data, said.work) if said.step == "prepare" else measure(said.work, said.replicates)
