"""Design effects that are estimated from a reference: by hand, and by the coverage of intervals that hold them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from public_files import statement_of
from scipy.sparse import csr_array

import dpdist
from dpdist.core.errors import DataError
from dpdist.core.records import TOTAL
from dpdist.estimation import direct as statistics
from dpdist.estimation.direct import DesignSample
from dpdist.job import Job
from dpdist.opening.results import open_evaluation
from dpdist.planning.making import make_plan
from dpdist.planning.plan import ReferenceDesign

REPLICATES = "replicate_weights: {kind: fay, fay: 0.5, prefix: rep, number: 8}"
STRATA, PSUS = 4, 10
JOB = """
dataset: clustered
period: "2"
input: {{path: {folder}/now.parquet}}
columns:
  stratum: {{levels: ["0", "1", "2", "3"]}}
  region: {{levels: [n, s]}}
  sex: {{levels: [f, m]}}
  pay: {{bounds: [0, 400], outside: clip}}
  hours: {{bounds: [0, 80], outside: clip}}
  weight: {{bounds: [1, 100], outside: clip}}
survey: {{weight: weight, design_strata: [stratum], {design}}}
outcome: [pay, hours]
mechanism: {{name: tables}}
budget: {{epsilon: "8", adjacency: substitution}}
reference: {{path: {folder}/before.parquet, period: "1", provenance: public}}
tables:
  - name: pay
    by: [region, sex]
    statistics: [count, {{mean: pay}}, {{total: hours}}, {{ratio: [pay, hours]}}, {{median: pay}}, {{share: sex}}]
"""


def survey(seed: int) -> pd.DataFrame:
    """Clusters of 15 to 35 records that are alike in pay and in sex."""
    rng, parts = np.random.default_rng(seed), []
    for stratum in range(STRATA):
        for town in range(PSUS):
            n, level, share = rng.integers(15, 36), rng.normal(0.0, 0.3), 1.0 / (1.0 + np.exp(-rng.normal(0.0, 0.7)))
            pay = np.clip(np.exp(rng.normal(3.0 + level, 0.5, n)), 0.0, 400.0)
            hours = np.clip(rng.normal(36.0 + 4.0 * level, 5.0, n), 0.0, 80.0)
            named = {"stratum": str(stratum), "town": f"{stratum}-{town}", "region": "ns"[stratum % 2]}
            sex = np.where(rng.random(n) < share, "f", "m")
            parts.append(pd.DataFrame({**named, "sex": sex, "pay": pay, "hours": hours, "weight": rng.uniform(20, 60, n)}))
    rows = pd.concat(parts, ignore_index=True)
    first = rng.choice([0.5, 1.5], (8, STRATA * PSUS // 2))
    half = np.stack([first, 2.0 - first], axis=2).reshape(8, -1)  # of every two towns of a stratum one is left out
    number = pd.factorize(rows["town"])[0]
    return rows.assign(**{f"rep{r + 1}": rows["weight"] * half[r][number] for r in range(8)})


def job_of(folder: Path, design: str) -> Job:
    return dpdist.parse_job(JOB.format(folder=folder, design=f"{design}, design_effect: reference"))


def found(folder: Path, design: str) -> ReferenceDesign:
    survey(1).to_parquet(folder / "before.parquet")
    survey(2).to_parquet(folder / "now.parquet")
    made = make_plan(job_of(folder, design), None, lambda _: None).design
    assert made is not None
    return made


def cells(rows: pd.DataFrame) -> dict[tuple[str, str], np.ndarray]:
    return {
        (region, sex): ((rows["region"] == region) | (region == TOTAL)) & ((rows["sex"] == sex) | (sex == TOTAL))
        for region in ("n", "s", TOTAL)
        for sex in ("f", "m", TOTAL)
    }


@pytest.mark.parametrize("design", ["psu: town", REPLICATES])
def test_effects_are_the_means_of_ratios_of_variances_over_cells_of_like_columns(tmp_path: Path, design: str) -> None:
    """By another path, `estimation.direct`, whose errors are those of R: PSUs or replicates over independent records."""
    made, rows = found(tmp_path, design), survey(1)
    inside = cells(rows)
    domains = csr_array(np.array(list(inside.values()), dtype=float))
    w, y, z = (rows[name].to_numpy() for name in ("weight", "pay", "hours"))
    stratum = rows["stratum"].astype(int).to_numpy()
    clustered = DesignSample.of(w, stratum, rows["town"].astype("category").cat.codes.to_numpy())
    said = job_of(tmp_path, design).survey.replicate_weights
    if said is not None:
        clustered = DesignSample.replicated(w, rows[list(said.columns)].to_numpy(), said)
    alone = DesignSample.of(w, stratum)
    ratios = {
        ("count", None): [statistics.count(each, domains) for each in (clustered, alone)],
        ("mean", "pay"): [statistics.mean(each, domains, y) for each in (clustered, alone)],
        ("total", "hours"): [statistics.total(each, domains, z) for each in (clustered, alone)],
        ("ratio", "pay"): [statistics.ratio(each, domains, y, z) for each in (clustered, alone)],
    }
    columns = [zip(("region", "sex"), cell, strict=True) for cell in inside]
    crossed = [tuple(name for name, level in each if level != TOTAL) for each in columns]
    known = {(each.statistics, each.outcome, each.by): each.effect for each in made.effects}
    for (statistic, outcome), (whole, plain) in ratios.items():
        ratio = (whole.standard_error / plain.standard_error) ** 2
        for by in ((), ("region",), ("sex",), ("region", "sex"), None):
            own = np.array([by is None or each == by for each in crossed])
            assert known[(statistic,), outcome, by] == pytest.approx(max(1.0, ratio[own].mean()), rel=5e-3), (statistic, by)
    assert made.effective == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert {each.statistics[0] for each in made.effects} == {"count", "mean", "total", "ratio", "median", "share"}


def test_without_clusters_that_are_alike_effects_are_about_one(tmp_path: Path) -> None:
    """Control: the same records, whose towns are dealt anew. Those of means are near 1, and none is below."""
    rows = survey(1)
    rng = np.random.default_rng(5)
    rows["town"] = rows.groupby("stratum")["town"].transform(lambda each: rng.permutation(each.to_numpy()))
    rows.to_parquet(tmp_path / "before.parquet")
    survey(2).to_parquet(tmp_path / "now.parquet")
    plan = make_plan(job_of(tmp_path, "psu: town"), None, lambda _: None)
    assert plan.design is not None
    dealt, clustered = (
        [each.effect for each in made.effects if each.statistics == ("mean",)]
        for made in (plan.design, found(tmp_path, "psu: town"))
    )
    assert min(dealt) >= 1.0
    assert max(dealt) < 2.0
    assert np.mean(clustered) > 2.0 * np.mean(dealt)


@pytest.mark.long
def test_a_chain_takes_over_the_effects_that_the_earlier_release_states(tmp_path: Path) -> None:
    """Two periods later too. Controls: a release without effects is refused, and effects widen the errors of counts."""
    survey(1).to_parquet(tmp_path / "before.parquet")
    survey(2).to_parquet(tmp_path / "now.parquet")
    chained = {}
    first = JOB.format(folder=tmp_path, design="psu: town, design_effect: reference").replace("{median: pay}, ", "")
    plain = first.replace(", design_effect: reference", "")
    for name, text in {"first": first, "plain": plain}.items():
        dpdist.run(dpdist.parse_job(text), tmp_path / name, counted=False)

    def later(text: str, period: str, before: str) -> Job:
        survey(int(period)).to_parquet(tmp_path / f"{period}.parquet")
        old = f'{{path: {tmp_path}/before.parquet, period: "1", provenance: public}}'
        assert old in text
        changed = text.replace(old, f"{{release: {tmp_path}/{before}/public}}").replace("now.parquet", f"{period}.parquet")
        return dpdist.parse_job(changed.replace('period: "2"', f'period: "{period}"'))

    for period, before in (("3", "first"), ("4", "3")):
        chained[period] = dpdist.run(later(first, period, before), tmp_path / period, counted=False)
    stated = [statement_of(tmp_path / name) for name in ("first", "3", "4")]
    assert stated[0]["reference"]["design_effects"]
    assert all(each["reference"]["design_effects"] == stated[0]["reference"]["design_effects"] for each in stated)
    assert any("estimated from the reference with which the chain began" in line for line in stated[2]["standard_errors"])
    with pytest.raises(DataError, match="states no design effects from a reference"):
        make_plan(later(first, "3", "plain"), None, lambda _: None)
    without = dpdist.run(later(plain, "3", "first"), tmp_path / "without", counted=False)
    errors = [
        rows[(rows["statistic"] == "count") & (rows["estimator"] == "parameters")]["standard_error"].to_numpy()
        for rows in (chained["3"].tables["pay"], without.tables["pay"])
    ]
    assert (errors[0] > errors[1]).mean() > 0.8


@pytest.mark.parametrize("design", ["psu: town", REPLICATES])
def test_direct_errors_of_ratios_under_the_design_are_those_of_replicates_or_psus(tmp_path: Path, design: str) -> None:
    """The evaluation's ratios, medians and shares have direct errors; those of ratios agree with R's by another path."""
    survey(1).to_parquet(tmp_path / "before.parquet")
    rows = survey(2)
    rows.to_parquet(tmp_path / "now.parquet")
    said = job_of(tmp_path, design)
    dpdist.run(said, tmp_path / "ws", counted=False)
    evaluated = open_evaluation(tmp_path / "ws")["pay"]
    assert evaluated["direct_se"].notna().all()
    inside = cells(rows)
    domains = csr_array(np.array(list(inside.values()), dtype=float))
    w, y, z = (rows[name].to_numpy() for name in ("weight", "pay", "hours"))
    sample = DesignSample.of(
        w, rows["stratum"].astype(int).to_numpy(), rows["town"].astype("category").cat.codes.to_numpy()
    )
    if (method := said.survey.replicate_weights) is not None:
        sample = DesignSample.replicated(w, rows[list(method.columns)].to_numpy(), method)
    for statistic, expected in {
        "ratio": statistics.ratio(sample, domains, y, z),
        "mean": statistics.mean(sample, domains, y),
        "median": statistics.quantile(sample, domains, y, 0.5),
    }.items():
        own = evaluated[evaluated["statistic"] == statistic].set_index(["region", "sex"]).loc[list(inside)]
        np.testing.assert_allclose(own["direct_se"], expected.standard_error, rtol=1e-9)


SAMPLES = 30
COVERED = 0.82


@pytest.mark.slow
def test_intervals_with_the_effects_of_a_reference_hold_the_truth_and_those_without_do_not(tmp_path: Path) -> None:
    """Thirty samples of one population of clusters, each released beside the same reference: the true counts and means.

    The limit is .82 of 90 % intervals: an effect is an estimate, of 36 degrees of freedom. Cells share clusters, so 30
    samples are counted as 30: a correct .90 falls below .82 with probability .06 in one statistic, and the seeds are fixed.
    The control takes the same samples without design effects.
    """
    survey(1).to_parquet(tmp_path / "before.parquet")
    said = job_of(tmp_path, "psu: town")
    plain = dpdist.parse_job(JOB.format(folder=tmp_path, design="psu: town"))
    many = pd.concat([survey(1000 + k) for k in range(200)], ignore_index=True)
    inside = cells(many)
    truth = {
        cell: (many["weight"][own].sum() / 200, np.average(many["pay"][own], weights=many["weight"][own]))
        for cell, own in inside.items()
    }
    held: dict[tuple[str, str], list[bool]] = {}
    for sample in range(SAMPLES):
        survey(2000 + sample).to_parquet(tmp_path / "now.parquet")
        for name, job in {"with": said, "without": plain}.items():
            rows = dpdist.run(job, tmp_path / f"{name}-{sample}", counted=False).tables["pay"]
            for row in rows[rows["estimator"] == "parameters"].to_dict("records"):
                if row["statistic"] in ("count", "mean"):
                    true = truth[row["region"], row["sex"]][row["statistic"] == "mean"]
                    held.setdefault((name, row["statistic"]), []).append(row["lower"] <= true <= row["upper"])
    shares = {key: float(np.mean(each)) for key, each in held.items()}
    print(shares)
    for statistic in ("count", "mean"):
        assert shares["with", statistic] > COVERED, shares
        assert shares["without", statistic] < COVERED - 0.1, shares
