"""Packages of ten tables beside AIM of opendp[mbi], which knows no weights: both have the same ε on thirds of a file.

    python tests/studies/packages_aim.py prepare --data FOLDER --work WORK [--files nhis …] [--splits 1]
    OTHER/python tests/studies/packages_aim.py aim --work WORK [--epsilon 1 4] [--rounds 10] [--buckets 8]
    python tests/studies/packages_aim.py measure --data FOLDER --work WORK [--files nhis …] [--splits 1] [--epsilon 1 4]

OTHER has pip install 'opendp[mbi]' pandas pyarrow. AIM counts records by a table's columns, a bucket of the weight and one
of the outcome: these are its ten queries. Edges of buckets are quantiles of the reference. They stand for its mean weight
there, and for its mean weighted outcome. Tables are read from the fitted model, without synthetic records. AIM hides one
record added or removed under ε, columns too. That is half of a substitution, so its noise is half of what that would need.
In `AIM, public numbers` a cell's figures are scaled to its public number of records, which table_package knows as well.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd


def edges(values: np.ndarray, buckets: int) -> np.ndarray:
    """Inner edges of buckets of equal numbers of reference records; fewer where values are heaped."""
    return np.unique(np.quantile(values, np.arange(1, buckets) / buckets))


def prepare(data: Path, work: Path, files: list[str], splits: int, buckets: int) -> None:
    from packages_of_files import FILES, parted, read

    work.mkdir(parents=True, exist_ok=True)
    for name in files:
        rows = read(FILES[name], data)
        for split in range(splits):
            parts = parted(FILES[name], rows, split)
            of = parts.common
            inner = [edges(values, buckets) for values in (of.weight, of.outcome)]
            made = []
            for records in (parts.current, parts.common):
                coded = pd.DataFrame(parts.workload.codes[records.cell]).add_prefix("c")
                coded["weight"], coded["outcome"] = (
                    np.searchsorted(inner_edges, values, side="right")
                    for inner_edges, values in zip(inner, (records.weight, records.outcome), strict=True)
                )
                made.append(coded)
            sizes = [*parts.workload.sizes, *(len(inner_edges) + 1 for inner_edges in inner)]
            cells = made[1]["weight"] * sizes[-1] + made[1]["outcome"]
            number = np.bincount(cells, minlength=sizes[-2] * sizes[-1]).reshape(sizes[-2:])
            sums = [
                np.bincount(cells, values, number.size).reshape(number.shape)
                for values in (of.weight, of.weight * of.outcome)
            ]
            made[0].to_parquet(work / f"{name}-{split}.parquet")
            by = [",".join(f"c{column}" for column in table.by) for table in parts.workload.tables]
            values = [total / np.maximum(number, 1) for total in sums]
            np.savez(work / f"{name}-{split}.npz", sizes=sizes, by=by, weight=values[0], product=values[1])


def aim(work: Path, epsilons: list[str], rounds: int) -> None:
    import opendp.extras.mbi._aim as aim_of
    import opendp.extras.mbi._mst as mst_of
    import opendp.prelude as dp
    import polars as pl

    dp.enable_features("contrib")
    mst_of.prior = aim_of.prior = lambda loss: loss * (1.0 - 1e-9)  # rounds that share a loss otherwise miss its sum
    for path in sorted(work.glob("*-?.parquet")):
        coded, about = pd.read_parquet(path), np.load(path.with_suffix(".npz"))
        keys = {name: list(range(size)) for name, size in zip(coded.columns, about["sizes"].tolist(), strict=True)}
        tables = [(*by.split(","), "weight", "outcome") for by in about["by"].tolist()]
        for epsilon in epsilons:
            begun = time.perf_counter()
            context = dp.Context.compositor(
                data=pl.from_pandas(coded).lazy(),
                privacy_unit=dp.unit_of(contributions=1),
                privacy_loss=dp.loss_of(epsilon=float(epsilon)),
            )
            algorithm = dp.mbi.AIM(queries=[dp.mbi.Count(by=by) for by in tables], rounds=rounds)
            query = context.query(epsilon=float(epsilon)).select(*coded.columns)
            fitted = query.contingency_table(keys=keys, algorithm=algorithm).release()
            shape = dict(zip(coded.columns, about["sizes"].tolist(), strict=True))
            counts = []
            for by in tables:  # opendp adds a level for what is in no list, behind the others
                whole = np.asarray(fitted.project(by))
                counts.append(whole[tuple(slice(shape[column]) for column in by)])
            np.savez(path.with_name(f"{path.stem}-aim-{epsilon}.npz"), *counts)
            print(f"{path.stem} {epsilon}: {time.perf_counter() - begun:.0f} s, {fitted.marginals.cliques()}", flush=True)


def of_aim(parts: object, work: Path, stem: str, epsilon: str) -> Iterator[pd.DataFrame]:
    """Errors of AIM's tables in direct standard errors, without and with public numbers of records."""
    from packages_of_files import FEWEST, by_itself, direct

    about, counts = np.load(work / f"{stem}.npz"), np.load(work / f"{stem}-aim-{epsilon}.npz")
    for number, table in enumerate(parts.workload.tables):
        alone = by_itself(parts, table)
        of_cells = counts[f"arr_{number}"][tuple(alone.workload.codes.T)]
        sums = [np.einsum("cij,ij->c", of_cells, about[name]) for name in ("weight", "product")]
        by_number = alone.workload.count / np.maximum(of_cells.sum(axis=(1, 2)), 1e-9)
        (only,) = alone.workload.tables
        matrix = alone.workload.published(only)
        here, earlier = (direct(matrix, records) for records in (alone.current, alone.common))
        for label, scale in (("AIM", 1.0), ("AIM, public numbers", by_number)):
            weight, product = (matrix @ (values * scale) for values in sums)
            figures = {"counts": weight, "means": product / np.maximum(weight, 1e-9)}
            by_reference = earlier.counts * here.number / np.maximum(earlier.number, 1.0)
            alone_figures = {"counts": by_reference, "means": earlier.means}
            for statistic, values in figures.items():
                exact, error = getattr(here, statistic), getattr(here, f"errors_of_{statistic}")
                kept = (here.number >= FEWEST) & (error > 0) & (earlier.number > 0)
                off = {"error": values - exact, "alone": alone_figures[statistic] - exact}
                made = pd.DataFrame({name: np.abs(distance[kept]) / error[kept] for name, distance in off.items()})
                yield made.assign(strategy=label, epsilon=epsilon, statistic=statistic, table=table.name)


def measure(data: Path, work: Path, files: list[str], splits: int, epsilons: list[str]) -> None:
    from packages_of_files import FILES, STRATEGIES, Budget, best_package, measured, parted, read

    per_table = [strategy for strategy in STRATEGIES if strategy.name == "per_table"]

    for name in files:
        rows, made = read(FILES[name], data), list[pd.DataFrame]()
        for split in range(splits):
            parts = parted(FILES[name], rows, split)
            for epsilon in epsilons:
                made += of_aim(parts, work, f"{name}-{split}", epsilon)
                budget = Budget("substitution", epsilon=Fraction(epsilon))
                package = best_package(parts.workload, parts.learned_from, parts.bounds, budget.law, per_table)[0]
                for one in measured(parts, package, budget, 0, split):
                    ours = pd.DataFrame(one | {"strategy": "table_package", "epsilon": epsilon})
                    made.append(ours[ours["counted"]])
        both = pd.concat(made, ignore_index=True)
        grouped = both.groupby(["epsilon", "statistic", "strategy"], sort=False)[["error", "alone"]]
        print(f"\n{name}, {splits} splits\n{grouped.agg(['median', 'max']).round(2).to_string()}")
        by_table = both.groupby(["epsilon", "statistic", "table", "strategy"], sort=False)["error"].median().unstack()
        print(by_table.round(2).to_string(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["prepare", "aim", "measure"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--files", nargs="*", default=["nhis", "nscg", "ses"])
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--epsilon", nargs="*", default=["1", "4"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--buckets", type=int, default=8)
    taken = parser.parse_args()
    if taken.step == "aim":
        aim(taken.work, taken.epsilon, taken.rounds)
    elif taken.step == "prepare":
        prepare(taken.data, taken.work, taken.files, taken.splits, taken.buckets)
    else:
        measure(taken.data, taken.work, taken.files, taken.splits, taken.epsilon)


if __name__ == "__main__":
    main()
