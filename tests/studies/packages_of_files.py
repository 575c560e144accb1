"""Packages of ten tables on thirds of public files: errors of every strategy beside those of the reference alone.

    python tests/studies/packages_of_files.py --data FOLDER [--files nscg …] [--epsilon 1 4] [--splits 3] [--draws 2]
        [--drift none|scale|shape|weights] [--strategies per_table …] [--rho] [--common]

A file is split at random into thirds: one is released, one is its reference, and one is the truth, with its own error.
Errors are about the released third's own weighted figures, in direct standard errors given the cells' numbers of records.
Cells are those of all tables, margins too, with 10 records or more. The reference alone has its mean weight times the
public number of records, and its mean. It has all records of its third (`alone`), or those in crosses of the released
third (`alone common`). With `--common` the package learns from these only. `unmeasured` is the package's prior. A table is
*worse* where its median error is over 1.05 times the reference's, and *clearly* so where that holds by 1.645 jackknife
standard errors of the ratio over splits. The strategy `separate` has a package for every table, with an equal part of the
budget, and `apart` one for every outcome. Noise is NumPy's, of the variance of the released one's.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, islice
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package of this checkout
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packages"))

import numpy as np
import pandas as pd
import scipy
from simulated_acs import LEVELS, MOST_INCOME, acs
from simulated_package import Budget, JointQuery, table_estimates

from dpdist.core.records import Floats
from dpdist.mechanisms.table_package.query import base_sums
from dpdist.packages.estimates import base_estimates
from dpdist.packages.package import Package, Reference, best_package
from dpdist.packages.package import package as package_of
from dpdist.packages.posterior import learned
from dpdist.packages.strategy import STRATEGIES
from dpdist.packages.sums import published_sums
from dpdist.packages.workload import PackageTable, Workload

FEWEST = 10
"""Records of a cell whose errors count."""
SMALLEST = 0.01
"""Least variance of weights within a cell, in their mean square, at which a count has a standard error given numbers."""
DELTA = 1e-9
NORMAL_90 = 1.6449
SEPARATE, APART = "separate", "apart"
"""Names of the comparisons with a package for every table, and for every outcome."""


class File(NamedTuple):
    """A public file, the columns of its tables, its weight and its outcome with public bounds."""

    path: str
    tables: tuple[tuple[str, ...], ...]
    outcome: str
    bounds: tuple[float, float]
    weight: str = "weight"
    keep: str = ""
    nested: tuple[str, ...] = ()
    """Columns of a hierarchy, the coarsest first."""
    second: str = ""
    """A second outcome, with its public bounds."""
    second_bounds: tuple[float, float] = (0.0, 0.0)


FILES = {
    "nscg": File(
        "nscg2013",
        (
            ("degree_field", "sex"),
            ("degree_field", "highest_degree"),
            ("degree_field", "age_group"),
            ("degree_field", "race_ethnicity"),
            ("highest_degree", "age_group"),
            ("highest_degree", "sex", "race_ethnicity"),
            ("age_group", "sex"),
            ("job_satisfaction", "degree_field"),
            ("job_satisfaction", "age_group"),
            ("age_group", "race_ethnicity", "sex"),
        ),
        "salary",
        (0.0, 150_000.0),
        keep="employment_status == 'Employed'",
    ),
    "vote": File(
        "cps_vote",
        (
            ("state", "sex"),
            ("state", "age_group"),
            ("state", "education"),
            ("state", "hispanic"),
            ("age_group", "education"),
            ("age_group", "sex", "race"),
            ("education", "sex", "race"),
            ("hispanic", "age_group"),
            ("hispanic", "education"),
            ("race", "hispanic"),
        ),
        "voted",
        (0.0, 1.0),
    ),
    "tax": File(
        "cps_taxunits",
        (
            ("state", "filing_status"),
            ("state", "age_group"),
            ("state", "income_year"),
            ("filing_status", "age_group"),
            ("filing_status", "income_year"),
            ("age_group", "income_year"),
            ("filing_status", "dependent_filer"),
            ("age_group", "dependent_filer"),
            ("state", "dependent_filer"),
            ("filing_status", "age_group", "income_year"),
        ),
        "wages",
        (0.0, 2_000_000.0),
    ),
    "nhis": File(
        "nhis2003",
        (
            ("ethnicity", "age_group"),
            ("ethnicity", "sex"),
            ("ethnicity", "education"),
            ("ethnicity", "family_income"),
            ("age_group", "education"),
            ("age_group", "sex"),
            ("age_group", "family_income"),
            ("education", "sex"),
            ("education", "family_income"),
            ("limited_activity", "age_group", "sex"),
        ),
        "uninsured",
        (0.0, 1.0),
    ),
    "ses": File(
        "ses_austria",
        (
            ("industry", "sex"),
            ("industry", "region"),
            ("industry", "employer_size"),
            ("region", "employer_size"),
            ("age_group", "sex"),
            ("education", "sex"),
            ("age_group", "education"),
            ("education", "industry"),
            ("region", "sex"),
            ("employer_size", "sex"),
        ),
        "earnings_hour",
        (0.0, 300.0),
    ),
    "acs": File(
        "simulated",
        (
            ("state", "sex"),
            ("state", "age"),
            ("state", "education"),
            ("state", "race"),
            ("state", "tenure"),
            ("region", "age", "sex"),
            ("region", "education", "race"),
            ("age", "education"),
            ("race", "tenure", "sex"),
            ("age", "race"),
        ),
        "income",
        (0.0, MOST_INCOME),
        nested=("region", "state"),
    ),
}
FILES["ses_two"] = FILES["ses"]._replace(tables=FILES["ses"].tables[:5], second="hours_paid", second_bounds=(0.0, 400.0))
FILES["nscg_two"] = FILES["nscg"]._replace(
    tables=(
        ("age_group", "sex"),
        ("highest_degree", "sex"),
        ("highest_degree", "age_group"),
        ("race_ethnicity", "age_group"),
    ),
    second="age",
    second_bounds=(15.0, 80.0),
)


def first_sets(columns: Sequence[str], number: int) -> tuple[tuple[str, ...], ...]:
    """The first sets of two columns, then of three, and so on; those with the first columns stand first."""
    every = (by for size in range(2, len(columns) + 1) for by in combinations(columns, size))
    return tuple(islice(every, number))


FILES |= {
    f"acs_{number}": FILES["acs"]._replace(tables=first_sets(("state", "region", *LEVELS), number)) for number in (30, 100)
}
SIMULATED = 300_000
"""Records of the simulated file."""


@dataclass(frozen=True)
class Parts:
    """A file's base cells with their sizes in the released third, and three sets of records of all base cells."""

    workload: Workload
    bounds: tuple[tuple[float, float], ...]
    """Public bounds of every outcome."""
    current: Reference
    reference: Reference
    """All records of its third."""
    truth: Reference
    """All records of the last third, in cells of `whole`."""
    whole: Workload
    """The base cells of all thirds."""
    learned_from: Reference
    """What the package has of `reference`."""

    @property
    def common(self) -> Reference:
        """The reference's records in crosses of the released third."""
        return common(self.reference, self.workload)


def common(records: Reference, workload: Workload) -> Reference:
    """Those of the records that lie in base cells of the file."""
    kept = records.cell < len(workload)
    return Reference(records.cell[kept], records.weight[kept], records.outcome[kept])


def read(file: File, folder: Path) -> pd.DataFrame:
    rows = acs(SIMULATED) if file.path == "simulated" else pd.read_parquet(folder / f"{file.path}.parquet")
    rows = rows.query(file.keep) if file.keep else rows
    columns = list(dict.fromkeys(column for table in file.tables for column in table))
    further = [file.second] if file.second else []
    rows = rows[[*columns, file.outcome, *further, file.weight]].dropna()
    if not pd.api.types.is_numeric_dtype(rows[file.outcome]):
        rows = rows.assign(**{file.outcome: (rows[file.outcome].astype(str) == "Yes").astype(float)})
    rows = rows[rows[file.weight] > 0]
    return rows.assign(**{file.outcome: rows[file.outcome].astype(float).clip(*file.bounds)}).reset_index(drop=True)


def parted(file: File, rows: pd.DataFrame, seed: int, drift: str = "none", only_common: bool = False) -> Parts:
    """The thirds of a file. `drift` moves the reference: it is smaller by a tenth and a seventh, or of another shape."""
    names = list(dict.fromkeys(column for table in file.tables for column in table))
    coded = [rows[name].astype("category").cat.remove_unused_categories() for name in names]
    codes = np.column_stack([column.cat.codes.to_numpy(dtype=np.int64) for column in coded])
    sizes = tuple(len(column.cat.categories) for column in coded)
    part = np.random.default_rng(seed).permutation(len(rows)) % 3
    occurring, cell = np.unique(codes[part == 0], axis=0, return_inverse=True)
    weight, outcome = rows[file.weight].to_numpy(dtype=float), rows[file.outcome].to_numpy(dtype=float)
    bounds: tuple[tuple[float, float], ...] = (file.bounds,)
    if file.second:
        bounds = (file.bounds, file.second_bounds)
        outcome = np.column_stack([outcome, rows[file.second].to_numpy(dtype=float).clip(*file.second_bounds)])
    tables = tuple(PackageTable(" x ".join(by), tuple(names.index(name) for name in by)) for by in file.tables)
    count = np.bincount(cell.reshape(-1), minlength=len(occurring)).astype(float)
    of_all, whole_cell = np.unique(codes, axis=0, return_inverse=True)
    nested = (tuple(names.index(name) for name in file.nested),) if file.nested else ()
    workload = Workload(occurring, sizes, count, tables, nested=nested, outcomes=len(bounds))
    whole = replace(workload, codes=of_all, count=np.ones(len(of_all)))
    earlier, absent = workload.placed(codes[part == 1])
    current, reference, truth = (
        Reference(of_cell, weight[part == number], outcome[part == number])
        for number, of_cell in enumerate((cell.reshape(-1), earlier, whole_cell.reshape(-1)[part == 2]))
    )
    reference = drifted(reference._replace(absent=absent), drift)
    learned_from = common(reference, workload) if only_common else reference
    return Parts(workload, bounds, current, reference, truth, whole, learned_from)


def drifted(records: Reference, drift: str) -> Reference:
    """An earlier file: `scale` divides weights by 1.1 and outcomes by 1.15; `shape` takes powers of 1/1.1, totals kept.

    `weights` multiplies weights alone by 1.3.
    """
    _, weight, outcome, _ = records
    if drift == "weights":
        return records._replace(weight=1.3 * weight)
    if drift == "scale":
        return records._replace(weight=weight / 1.1, outcome=outcome / 1.15)
    if drift == "shape":
        heavier = weight ** (1 / 1.1)
        richer = np.maximum(outcome, 0.0) ** (1 / 1.1)
        scale = np.average(outcome, weights=weight) / max(np.average(richer, weights=weight), 1e-300)
        return records._replace(weight=heavier * weight.sum() / heavier.sum(), outcome=richer * scale)
    return records


class Direct(NamedTuple):
    """A table's figures from records, (cell,): numbers, counts, means, and their standard errors given numbers."""

    number: Floats
    counts: Floats
    means: Floats
    errors_of_counts: Floats
    errors_of_means: Floats


def by_itself(parts: Parts, table: PackageTable) -> Parts:
    """A table's columns alone: its cells are the base cells."""
    alone = replace(table, by=tuple(range(len(table.by))))

    def of(workload: Workload) -> Workload:
        codes, cell = np.unique(workload.codes[:, table.by], axis=0, return_inverse=True)
        sizes = tuple(workload.sizes[column] for column in table.by)
        return Workload(codes, sizes, np.bincount(cell.reshape(-1), weights=workload.count).astype(float), (alone,))

    def placed(records: Reference, by: Workload, target: Workload) -> Reference:
        cell, absent = target.placed(records.crosses(by).codes[:, table.by])
        return records._replace(cell=cell[records.cell], absent=absent)

    workload, whole = of(parts.workload), of(parts.whole)
    current, reference, learned_from = (
        placed(records, parts.workload, workload) for records in (parts.current, parts.reference, parts.learned_from)
    )
    return Parts(workload, parts.bounds, current, reference, placed(parts.truth, parts.whole, whole), whole, learned_from)


def direct(matrix: scipy.sparse.csr_array, records: Reference, outcome: int = 0) -> Direct:
    cells = matrix.shape[1]
    cell, w, y = records.cell, records.weight, records.outcomes[outcome]

    def summed(values: Floats) -> Floats:
        return np.asarray(matrix @ np.bincount(cell, weights=values, minlength=cells))

    n, count, square = summed(np.ones_like(w)), summed(w), summed(w**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = summed(w * y) / count
        spread = summed(w**2 * y**2) - 2 * mean * summed(w**2 * y) + mean**2 * square
        of_mean = np.sqrt(np.maximum(spread, 0.0)) / count
        within = np.maximum(square - count**2 / n, 0.0) * n / np.maximum(n - 1, 1)
        of_count = np.sqrt(np.where(within > SMALLEST * square, within, np.nan))
    return Direct(n, count, mean, of_count, of_mean)


def measured(parts: Parts, package: Package, budget: Budget, seed: int, split: int) -> Iterator[dict[str, object]]:
    """One row for every cell and statistic under one draw of the noise."""
    query = JointQuery(package.prior.limits, package.measurements, package.shares, budget)
    exact = query.in_records(base_sums(query.limits, *parts.current[:3]))
    rng, noise = np.random.default_rng([seed, split]), package.posterior.noise
    pure = budget.epsilon is not None
    x = exact + (rng.laplace(0.0, np.sqrt(noise / 2.0)) if pure else rng.normal(0.0, np.sqrt(noise)))
    posterior = learned(package.posterior, x)
    base = base_estimates(posterior, x, parts.bounds)
    crosses = parts.reference.crosses(parts.workload)
    for table, predicted in zip(parts.workload.tables, package.predicted(records=parts.learned_from), strict=True):
        matrix, estimates = parts.workload.published(table), table_estimates(posterior, table, base)
        planned_counts, *planned_totals = (
            sums.of(package.prior.mean) for sums in published_sums(matrix, package.prior.levels)
        )
        for name, k in (("counts", 0), *(("means", k) for k in range(len(parts.bounds)))):
            here, of_common = (direct(matrix, records, k) for records in (parts.current, parts.common))
            of_all = direct(crosses.published(table), parts.reference, k)
            truth = direct(parts.whole.published(table), parts.truth, k)
            error = getattr(here, f"errors_of_{name}")
            stated, value, foreseen = (
                values.reshape(len(error), -1)[:, k]
                for values in (
                    getattr(estimates, f"errors_of_{name}"),
                    getattr(estimates, name),
                    getattr(predicted.error, name),
                )
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                if name == "counts":  # predicted in standard errors of random numbers of records, which are larger
                    n, all_records = here.number, len(parts.current.cell)
                    foreseen = foreseen * np.sqrt((n - 1) / n + (here.counts / error) ** 2 * (1.0 / n - 1.0 / all_records))
                alone, alone_common = (
                    earlier.counts / earlier.number * here.number if name == "counts" else earlier.means
                    for earlier in (of_all, of_common)
                )
                with np.errstate(divide="ignore", invalid="ignore"):
                    unmeasured = planned_counts if name == "counts" else planned_totals[k] / planned_counts
                scale = here.number / truth.number if name == "counts" else np.ones_like(error)
                target, target_error = getattr(truth, name) * scale, getattr(truth, f"errors_of_{name}") * scale
                one = {
                    "table": table.name,
                    "statistic": f"{name} {k + 1}" if k else name,
                    "cell": np.arange(len(error)),
                    "n": here.number,
                    "error": np.abs(value - getattr(here, name)) / error,
                    "signed": (value - getattr(here, name)) / error,
                    "alone": np.abs(alone - getattr(here, name)) / error,
                    "unmeasured": np.abs(unmeasured - getattr(here, name)) / error,
                    "alone common": np.abs(alone_common - getattr(here, name)) / error,
                    "held": np.abs(value - target) <= NORMAL_90 * np.hypot(stated, target_error),
                    "direct": np.abs(getattr(here, name) - target) <= NORMAL_90 * np.hypot(error, target_error),
                    "predicted": foreseen,
                    "stated": stated / error,
                    "drift_weight": posterior.drift[0],
                    "drift_outcome": posterior.drift[1 + k],
                    "counted": (here.number >= FEWEST) & (error > 0) & np.isfinite(alone_common) & (truth.number > 1),
                }
            yield one | {"split": split, "draw": seed}


def by_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Median and largest errors by table, beside the reference's, and the median's ratio."""
    grouped = rows.groupby(["strategy", "epsilon", "statistic", "table"], sort=False)
    summary = grouped[["error", "alone"]].agg(["median", "max"])
    summary.columns = ["median", "largest", "alone", "alone largest"]
    summary["ratio"] = summary["median"] / summary["alone"]
    summary["ratio common"] = summary["median"] / grouped["alone common"].median()
    roots = grouped[["error", "predicted"]].agg(lambda part: np.sqrt((part**2).mean()))
    summary["predicted"] = roots["predicted"]
    summary["over predicted"] = roots["error"] / roots["predicted"]
    squares = grouped.apply(lambda part: np.sqrt((part["error"] ** 2).mean() / (part["alone"] ** 2).mean()))
    return summary.assign(rms_ratio=squares, ratio_error=grouped[["split", "error", "alone"]].apply(jackknifed))


def jackknifed(table: pd.DataFrame) -> float:
    """Standard error of the ratio of medians, by leaving out each split; both medians are of the same splits."""
    splits = table["split"].unique()
    if len(splits) < 2:
        return float("nan")
    left = (table[table["split"] != split] for split in splits)
    ratios = np.array([kept["error"].median() / kept["alone"].median() for kept in left])
    return float(np.sqrt((len(splits) - 1) * ratios.var()))


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line for a strategy, budget and statistic."""
    by = ["strategy", "epsilon", "statistic"]
    grouped = rows.groupby(by, sort=False)
    summary = grouped[["error", "alone"]].agg(["median", "max"])
    summary.columns = ["median", "largest", "alone", "alone largest"]
    summary["predicted"] = grouped["predicted"].median()
    for one in ("unmeasured", "alone"):
        summary[f"{one} rms"] = grouped[one].agg(lambda errors: np.sqrt((errors**2).mean()))
    summary[["held", "direct"]] = grouped[["held", "direct"]].mean()
    summary["over4"] = grouped["error"].apply(lambda error: (error > 4).mean())
    tables = by_table(rows).reset_index().groupby(by, sort=False)
    summary["worst table"], summary["worse"] = (
        tables["ratio"].max(),
        tables["ratio"].apply(lambda ratio: (ratio > 1.05).sum()),
    )
    summary["alone common"] = grouped["alone common"].median()
    summary["worse common"] = tables["ratio common"].apply(lambda ratio: (ratio > 1.05).sum())
    surely = by_table(rows).reset_index()
    surely["over"] = surely["ratio"] - NORMAL_90 * surely["ratio_error"] > 1.05
    summary["clearly"] = surely.groupby(by, sort=False)["over"].sum()
    summary["worst rms"] = tables["rms_ratio"].max()
    summary[["drift w", "drift y"]] = grouped[["drift_weight", "drift_outcome"]].median()
    return summary


def study(
    name: str,
    folder: Path,
    budgets: dict[str, Budget],
    splits: int,
    draws: int,
    drift: str,
    strategies: list[str],
    only_common: bool = False,
) -> pd.DataFrame:
    """All rows of a file."""
    file, made = FILES[name], []
    rows = read(file, folder)
    for split in range(splits):
        parts = parted(file, rows, split, drift, only_common)
        for label, budget in budgets.items():
            begun, packages = time.process_time(), planned_packages(parts, budget, strategies)
            took = {"plan": time.process_time() - begun}
            named = {"split": split, "epsilon": label}
            for place, planned in enumerate(packages):
                begun = time.process_time()
                for draw in range(draws):
                    for one in measured(parts, planned, budget, draw, split):
                        made.append(counted(one | named | {"strategy": planned.strategy, "place": place}))
                sums = f"{planned.strategy} with {len(planned.posterior.measured):,} sums"
                took[sums] = time.process_time() - begun
            begun = time.process_time()
            if not strategies or SEPARATE in strategies:
                made += separate(parts, budget, draws, split, label)
            if len(parts.bounds) > 1 and (not strategies or APART in strategies):
                made += apart(parts, budget, draws, split, label)
            took["comparisons"] = time.process_time() - begun
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(
                f"{name} {split} {label}: {len(parts.workload):,} base cells; processor time "
                f"{', '.join(f'{part} {spent:.0f} s' for part, spent in took.items())}; up to {memory:.1f} GB",
                flush=True,
            )
    return pd.concat(made, ignore_index=True)


def planned_packages(parts: Parts, budget: Budget, strategies: Sequence[str]) -> list[Package]:
    """The packages of the named strategies, or of all that suit; the one of the least predicted objective first."""
    given = parts.workload, parts.learned_from, parts.bounds, budget.law
    if not strategies:
        return best_package(*given)
    kept = (package_of(*given, strategy) for strategy in STRATEGIES if strategy.name in strategies)
    return sorted(kept, key=lambda planned: planned.objective)


def counted(one: dict[str, object]) -> pd.DataFrame:
    """The rows of cells that count."""
    rows = pd.DataFrame(one)
    return rows[rows["counted"]].drop(columns="counted")


def separate(parts: Parts, budget: Budget, draws: int, split: int, label: str) -> Iterator[pd.DataFrame]:
    """Rows of a package for every table, each with an equal part of the budget."""
    tables = parts.workload.tables
    part = divided(budget, len(tables))
    for number, table in enumerate(tables):
        alone = by_itself(parts, table)
        package = best_package(alone.workload, alone.learned_from, alone.bounds, part.law)[0]
        for draw in range(draws):
            for one in measured(alone, package, part, draw, 1000 * split + number):
                yield counted(one | {"split": split, "strategy": SEPARATE, "epsilon": label, "place": 0})


def apart(parts: Parts, budget: Budget, draws: int, split: int, label: str) -> Iterator[pd.DataFrame]:
    """Rows of a package for every outcome, each with an equal part of the budget; counts are the first one's."""
    part = divided(budget, len(parts.bounds))
    for k, bounds in enumerate(parts.bounds):
        several = parts.current, parts.reference, parts.truth, parts.learned_from
        current, reference, truth, learned_from = (of._replace(outcome=of.outcomes[k]) for of in several)
        workload = replace(parts.workload, outcomes=1)
        alone = Parts(workload, (bounds,), current, reference, truth, parts.whole, learned_from)
        package = best_package(alone.workload, alone.learned_from, alone.bounds, part.law)[0]
        for draw in range(draws):
            for one in measured(alone, package, part, draw, 1000 * split + k):
                if k and one["statistic"] == "counts":
                    continue
                named = {"statistic": f"means {k + 1}"} if k else {}
                yield counted(one | named | {"split": split, "strategy": APART, "epsilon": label, "place": 0})


def divided(budget: Budget, parts: int) -> Budget:
    """One of equal parts of a budget."""
    shares = {name: value and value / parts for name, value in (("epsilon", budget.epsilon), ("rho", budget.rho))}
    return replace(budget, **shares)


def zcdp(epsilon: float) -> Fraction:
    """ρ whose simple conversion ρ + 2√(ρ log 1/δ) is ε at δ = 1e-9, rounded down."""
    log = float(np.log(1.0 / DELTA))
    return Fraction(int(1e9 * (np.sqrt(log + epsilon) - np.sqrt(log)) ** 2), 10**9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--files", nargs="*", default=list(FILES))
    parser.add_argument("--epsilon", nargs="*", default=["1", "4"])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--drift", default="none")
    parser.add_argument("--strategies", nargs="*", default=[])
    parser.add_argument("--rho", action="store_true", help="zCDP at δ = 1e-9 in place of pure ε")
    parser.add_argument("--common", action="store_true", help="packages learn from crosses of the released third only")
    parser.add_argument("--out", type=Path)
    taken = parser.parse_args()
    pd.set_option("display.width", 220, "display.max_rows", 1000, "display.max_columns", 50)
    budgets = {
        each: Budget("substitution", rho=zcdp(float(each))) if taken.rho else Budget("substitution", epsilon=Fraction(each))
        for each in taken.epsilon
    }
    for name in taken.files:
        rows = study(name, taken.data, budgets, taken.splits, taken.draws, taken.drift, taken.strategies, taken.common)
        if taken.out:
            rows.to_parquet(taken.out / f"{name}-{taken.drift}.parquet")
        print(f"\n{name}, drift {taken.drift}\n{summary(rows).round(2).to_string()}")
        print(by_table(rows).round(2).to_string(), flush=True)


if __name__ == "__main__":
    main()
