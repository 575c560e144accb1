"""Estimates and standard errors against R's `survey` (golden/make_golden.R), to 1e-9: a small survey, real files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from dpdist.estimation import direct as statistics
from dpdist.estimation.direct import DesignSample, Estimates
from dpdist.estimation.estimators import crossed_products, replicate_df
from dpdist.job import ReplicateWeights

GOLDEN = pd.read_csv(Path(__file__).parent / "golden" / "golden.csv", dtype={"domain": str})
TOLERANCE = 1e-9
ROUNDING = 1e-15
"""Of the estimate: replicates that reproduce a total leave an error that is the rounding of sums."""


def small() -> pd.DataFrame:
    i = np.arange(120)
    return pd.DataFrame(
        {
            "y": ((i * 37) % 101) / 7 + 1,
            "z": ((i * 53) % 89) / 5 + 2,
            "w": 1 + ((i * 13) % 17) / 3,
            "h": i % 5,
            "p": (i // 5) % 4,
            "d": ((i * 7) % 3).astype(str),
            "N": 9.0 + i % 5,
            "M": 20.0 + (i // 5) % 4,
        }
    )


def replicates(w: np.ndarray) -> np.ndarray:
    i = np.arange(len(w))
    return np.column_stack([w * (1 + 0.5 * (((i * i + 3 * i * r * r + 7 * r) % 13) / 6 - 1)) for r in range(1, 13)])


def taylor(case: str, s: pd.DataFrame) -> DesignSample:
    w, h, p = s["w"].to_numpy(), s["h"].to_numpy(), s["p"].to_numpy()
    if case == "psu":
        return DesignSample.of(w, h, p)
    if case == "records":
        return DesignSample.of(w, h)
    if case == "psu fpc":
        return DesignSample.of(w, h, p, s["N"].to_numpy())
    if case == "two stages":
        return DesignSample.of(w, h, p, s["N"].to_numpy(), s["M"].to_numpy())
    rule = {"lonely certainty": "certainty", "lonely average": "average", "lonely adjust": "centred"}[case]
    return DesignSample.of(w, h, p, lonely=rule)


REPLICATED = {
    "brr": {"kind": "brr"},
    "fay": {"kind": "fay", "fay": 0.3},
    "jackknife": {"kind": "jackknife"},
    "jackknife strata": {"kind": "jackknife", "scale": 1, "factors": [1 / 2, 2 / 3, 3 / 4] * 4, "centre": "mean"},
    "bootstrap": {"kind": "bootstrap", "centre": "mean"},
    "successive difference": {"kind": "successive_difference"},
}


def figures(sample: DesignSample, domain: pd.Series, y: np.ndarray, z: np.ndarray | None) -> Callable[[str], pd.DataFrame]:
    """Estimates of a statistic by its golden name, one row a domain."""
    levels = ["Total", *sorted(domain.astype(str).unique())]
    inside = np.array([np.ones(len(y), bool) if level == "Total" else (domain.astype(str) == level) for level in levels])
    domains = csr_array(inside.astype(float))

    def found(name: str) -> pd.DataFrame:
        kind, _, share = name.partition(" ")
        made: Estimates
        if kind == "count":
            made = statistics.count(sample, domains)
        elif kind == "quantile":
            made = statistics.quantile(sample, domains, y, float(share))
        elif kind == "ratio":
            assert z is not None
            made = statistics.ratio(sample, domains, y, z)
        else:
            made = getattr(statistics, kind)(sample, domains, y)
        return pd.DataFrame({"value": made.value, "se": made.standard_error, "df": made.df}, index=levels)

    return found


def assert_golden(case: str, found: Callable[[str], pd.DataFrame]) -> None:
    golden = GOLDEN[GOLDEN["case"] == case]
    assert len(golden) > 3
    for name, rows in golden.groupby("statistic"):
        mine = found(str(name)).loc[rows["domain"]]
        for column in ("value", "se", "df"):
            error = np.abs(mine[column].to_numpy() - rows[column].to_numpy())
            allowed = TOLERANCE * rows[column].abs() + ROUNDING * rows["value"].abs()
            same = (error <= allowed) | (mine[column].isna().to_numpy() & rows[column].isna())
            assert same.all(), f"{case} {name} {column}: {mine[column].to_numpy()} is not {rows[column].to_numpy()}"


@pytest.mark.parametrize(
    "case", ["psu", "records", "psu fpc", "two stages", "lonely certainty", "lonely average", "lonely adjust"]
)
def test_linearised_errors_are_those_of_r(case: str) -> None:
    s = small()
    if case.startswith("lonely"):
        s = s[~((s["h"] == 4) & (s["p"] > 0))]
    assert_golden(case, figures(taylor(case, s), s["d"], s["y"].to_numpy(), s["z"].to_numpy()))


@pytest.mark.parametrize("case", REPLICATED)
def test_replicate_errors_are_those_of_r(case: str) -> None:
    s = small()
    said = ReplicateWeights.model_validate({"prefix": "r", "number": 12, **REPLICATED[case]})
    w = s["w"].to_numpy()
    assert_golden(
        case, figures(DesignSample.replicated(w, replicates(w), said), s["d"], s["y"].to_numpy(), s["z"].to_numpy())
    )


def test_the_degrees_of_freedom_of_replicates_are_the_rank_of_their_weights_less_one() -> None:
    """R's `degf`: a stratified jackknife of 20 strata × 5 PSUs has 80, not 99; blocks of records tell the same."""
    stratum, psu = np.repeat(np.arange(20), 25), np.tile(np.repeat(np.arange(5), 5), 20)
    w = 1.0 + np.random.default_rng(3).random(500)
    gone = [(h, p) for h in range(20) for p in range(5)]
    again = np.column_stack([w * np.where(stratum == h, np.where(psu == p, 0.0, 5 / 4), 1.0) for h, p in gone])
    assert np.linalg.matrix_rank(again) == 81
    blocks = sum(crossed_products(again[start : start + 90]) for start in range(0, 500, 90))
    assert replicate_df(blocks) == 80.0
    assert replicate_df(crossed_products(np.column_stack([again, again]))) == 80.0, "a repeated replicate adds none"
    said = ReplicateWeights.model_validate(
        {"kind": "jackknife", "prefix": "r", "number": 100, "scale": 1, "factors": [0.8] * 100}
    )
    domains = csr_array(np.array([np.ones(500), np.arange(500) < 3, np.arange(500) < 1]))
    assert statistics.count(DesignSample.replicated(w, again, said), domains).df.tolist() == [80.0, 2.0, 0.0]
    stated = said.model_copy(update={"df": 30.0})
    assert DesignSample.replicated(w, again, stated).replicate_df == 30.0, "what a job states stands"


@pytest.mark.parametrize("centre", ["estimate", "mean"])
def test_replicates_without_a_record_of_a_domain_are_left_out(centre: str) -> None:
    """By hand, as R's `svrVar` with `na.omit`: the scale stays. Counts are 0 there, and stay in."""
    rng = np.random.default_rng(5)
    w, y = 1.0 + rng.random(6), rng.random(6)
    again = w[:, None] * rng.integers(0, 3, (6, 40))
    own = np.array([True, True, False, False, False, False])
    again[~own, 0] = w[~own]
    again[own, 1:9] = 0.0
    there = again[own].sum(axis=0) > 0
    assert 0 < (~there).sum() < 30
    said = ReplicateWeights.model_validate({"kind": "bootstrap", "prefix": "r", "number": 40, "centre": centre})
    sample, domains = DesignSample.replicated(w, again, said), csr_array(own[None].astype(float))
    made = statistics.mean(sample, domains, y)
    means = (again[own] * y[own, None]).sum(axis=0)[there] / again[own].sum(axis=0)[there]
    middle = means.mean() if centre == "mean" else made.value[0]
    assert made.standard_error[0] ** 2 == pytest.approx(((means - middle) ** 2).sum() / 40)
    counts = again[own].sum(axis=0)
    middle = counts.mean() if centre == "mean" else w[own].sum()
    assert statistics.count(sample, domains).standard_error[0] ** 2 == pytest.approx(((counts - middle) ** 2).sum() / 40)
    empty = csr_array(np.zeros((1, 6)))
    assert np.isnan(statistics.mean(sample, empty, y).standard_error).all()


def test_the_golden_figures_tell_designs_apart() -> None:
    """Control: records taken for PSUs, or a forgotten fpc, is seen."""
    s = small()
    for case, other in (("psu", "records"), ("psu fpc", "psu"), ("two stages", "psu fpc")):
        with pytest.raises(AssertionError, match=case):
            assert_golden(case, figures(taylor(other, s), s["d"], s["y"].to_numpy(), s["z"].to_numpy()))


@pytest.mark.real_data
@pytest.mark.parametrize("case", ["nhanes2015", "nhis2003", "recs2015", "schools_apistrat", "schools_apiclus2"])
def test_real_designs_give_the_figures_of_r(data: Path, case: str) -> None:
    s = pd.read_parquet(data / f"{case}.parquet")
    if case == "nhanes2015":
        s = s[(s["weight_exam"] > 0) & s["bmi"].notna() & s["height_cm"].notna()]
        sample = DesignSample.of(s["weight_exam"].to_numpy(float), s["stratum"].to_numpy(), s["psu"].to_numpy())
        columns = ("age_group", "bmi", "height_cm")
    elif case == "nhis2003":
        s = s[s["uninsured"].notna()]
        s = s.assign(yes=(s["uninsured"] == "Yes").astype(float))
        sample = DesignSample.of(s["weight"].to_numpy(float), s["stratum"].to_numpy(), s["psu"].to_numpy())
        columns = ("ethnicity", "yes", "yes")
    elif case == "recs2015":
        said = ReplicateWeights(kind="fay", prefix="brr_", number=96, fay=0.5)
        sample = DesignSample.replicated(s["weight"].to_numpy(float), s[list(said.columns)].to_numpy(float), said)
        columns = ("division", "total_dollars", "total_kbtu")
    elif case == "schools_apistrat":
        codes = s["school_type"].cat.codes.to_numpy()
        sample = DesignSample.of(s["weight"].to_numpy(float), codes, population=s["fpc"].to_numpy(float))
        columns = ("awards", "api00", "api99")
    else:
        sizes = s["fpc1"].to_numpy(float), s["fpc2"].to_numpy(float)
        sample = DesignSample.of(s["weight"].to_numpy(float), None, s["district"].to_numpy(), *sizes)
        columns = ("awards", "api00", "api99")
    domain, y, z = (s[name] for name in columns)
    assert_golden(case, figures(sample, domain, y.to_numpy(float), z.to_numpy(float)))
