"""Nothing public depends on the records but through the noisy sums: impose these, and wildly different files of the same x
give the same public bytes. Control: under the same noise, not imposed, sums differ, and with them the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.records import Crosstab, Floats, Ints
from dpdist.engine.protocol import Measurement, Noise
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.runtime.tasks import JobFit
from dpdist.storage.workspace import Workspace

JOB = """
dataset: blind
publish: always
period: "{period}"
columns:
  field: {{levels: [arts, law, medicine]}}
  sex: {{levels: [f, m]}}
  salary: {{bounds: [1, 150000], outside: clip}}
  paid: {{bounds: [0, 1], whole: true, outside: clip}}
  weight: {{bounds: [0.1, 20000], outside: clip}}
survey: {{{survey}}}
strata: [{strata}]
outcome: {outcome}
model: {model}
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "1", adjacency: {adjacency}{delta}}}
{predictors}
synthetic_sets: {sets}
{reference}
tables:
  - {{name: salaries, by: [field, sex], statistics: [{statistics}]}}
{rake}
runtime: {{executor: serial}}
"""
PUBLIC = "reference: {{path: {folder}/before.parquet}}"
RAKE = "rake: [{by: [field], totals: {arts: 9000, law: 8000, medicine: 30000}}]"
PLAIN = {
    "period": "2021",
    "survey": "weight: weight",
    "strata": "",
    "outcome": "salary",
    "model": "null",
    "mechanism": "tables",
    "adjacency": "zero_out",
    "delta": "",
    "sets": "1",
    "reference": PUBLIC,
    "rake": "",
    "predictors": "",
    "statistics": "count, {mean: salary}",
}
PROTECTED = {"adjacency": "add_remove", "predictors": 'predictors: {protect: {epsilon: "0.3"}}'}
SANITIZED = {"model": "{family: lognormal}", "mechanism": "sanitized_statistics", "sets": "3"}
VARIANTS: dict[str, dict[str, str]] = {
    "tables": {},
    "tables, substitution, PSUs": {
        "adjacency": "substitution",
        "survey": "weight: weight, design_strata: [sex], psu: psu, lonely_psu: centred",
    },
    "tables, two outcomes, strata": {
        "adjacency": "substitution",
        "mechanism": "tables",
        "outcome": "[salary, paid]",
        "strata": "sex",
        "survey": "weight: weight, design_strata: [field], psu: psu, lonely_psu: centred",
    },
    "tables, raked, Gaussian": {"mechanism": "tables, noise: gaussian", "delta": ', delta: "1e-6"', "rake": RAKE},
    "tables, no weights": {"mechanism": "tables", "survey": ""},
    "tables, replicate weights": {
        "survey": "weight: weight, replicate_weights: {kind: brr, prefix: r, number: 4}",
    },
    "tables, raked": {"rake": RAKE},
    "tables, histograms": {"reference": 'reference: {{histogram: {{epsilon: "0.3"}}}}'},
    "tables, add_remove": {"adjacency": "add_remove"},
    "tables, chain": {"period": "2022", "reference": "reference: {{release: {folder}/chain/public}}"},
    "sanitized statistics": {**SANITIZED, "strata": "sex"},
    "sanitized statistics, Gaussian": {
        **SANITIZED,
        "mechanism": "sanitized_statistics, noise: gaussian",
        "delta": ', delta: "1e-6"',
        "survey": "weight: weight, population: 40000",
        "model": "{family: lognormal, synthesis: fbp}",
    },
    "laplace_composed": {
        "mechanism": "laplace_composed, sensitivity: public, consistency: least_squares",
        "reference": "",
    },
    "perturbed_histogram": {
        "mechanism": "perturbed_histogram",
        "strata": "field, sex",
        "survey": "",
        "sets": "2",
        "reference": "",
    },
    "laplace_composed, protected, PSUs": {
        **PROTECTED,
        "mechanism": "laplace_composed, sensitivity: public, consistency: least_squares",
        "survey": "weight: weight, design_strata: [sex], psu: psu, lonely_psu: centred",
        "reference": "",
    },
    "perturbed_histogram, protected, strata": {
        **PROTECTED,
        "mechanism": "perturbed_histogram",
        "strata": "field, sex",
        "survey": "",
        "reference": "",
    },
    "sanitized statistics, protected": {**PROTECTED, **SANITIZED},
    "sanitized statistics, protected, Gaussian": {
        **PROTECTED,
        **SANITIZED,
        "mechanism": "sanitized_statistics, noise: gaussian",
        "delta": ', delta: "1e-6"',
    },
    "weighted marginals, protected": {
        **PROTECTED,
        "mechanism": "marginals",
        "outcome": "paid",
        "strata": "field, sex",
        "reference": "",
        "statistics": "count, {mean: paid}",
    },
    "modips, protected": {**PROTECTED, "mechanism": "modips, law: normal", "sets": "2", "reference": ""},
}


def survey(seed: int, n: int, wild: bool = False) -> pd.DataFrame:
    """The same field and sex for all seeds; `wild`: another law of outcomes, weights and PSUs altogether."""
    x, rng = np.random.default_rng(0), np.random.default_rng(seed)
    fields, sexes = x.choice(3, n, p=[0.2, 0.3, 0.5]), x.choice(2, n)
    salary = np.exp(rng.normal(10.6 + 0.2 * fields, 0.5)) if not wild else rng.choice([1.0, 3.0, 150_000.0], n)
    weight = np.exp(rng.normal(4.0, 0.7, n)) if not wild else np.exp(rng.uniform(-2.0, 9.8, n))
    rows = {
        "field": np.array(["arts", "law", "medicine"])[fields],
        "sex": np.array(["f", "m"])[sexes],
        "salary": np.clip(salary, 1.0, 150_000.0),
        "paid": (rng.random(n) < (0.01 if wild else 0.6)).astype(float),
        "weight": np.clip(weight, 0.1, 20_000.0),
        "psu": [f"{'wild' if wild else 'psu'} {k}" for k in rng.choice(200 if wild else 20, n)],
    }
    return pd.DataFrame(rows | {f"r{k}": rows["weight"] * rng.choice([0.0, 2.0], n) for k in range(1, 5)})


@dataclass
class Noisy:
    """Noisy sums by stratum and number: kept from one run, imposed on the next."""

    kept: dict[tuple[int, int], Floats] = field(default_factory=dict)
    counts: dict[int, Floats] = field(default_factory=dict)
    """Of the frame, by level, where predictors are protected."""
    imposing: bool = False
    differing: bool = False
    """True if a sum is imposed on a run that would have had another one, under this noise."""
    used: int = 0
    asked: tuple[int, int] = (0, 0)
    """Stratum and number of the last noise."""

    def of_frame(self, space: Workspace, job: Job, number: int, crosstab: Crosstab, exact: Ints) -> Floats:
        """A level's noise, under which its counts are those that are kept."""
        if not self.imposing:
            self.counts[number] = exact + np.rint(np.random.default_rng(number).laplace(0.0, 12.0, len(exact)))
        return self.counts[number] - exact

    def of(self, stratum: int) -> Callable[[Noise], Floats]:
        """A stratum's noise: of a fixed seed, at its scale."""

        def noise(request: Noise) -> Floats:
            self.asked = stratum, request.set
            own = np.random.default_rng([stratum, request.set]).laplace(0.0, 1.0, request.size)
            return np.rint(own * float(request.scale))

        return noise

    def under(self, query: Measurement, noise: Floats) -> Floats:
        """The answer to the query that was asked last."""
        self.used += 1
        own = query.sums + noise.reshape(query.sums.shape)
        if not self.imposing:
            self.kept[self.asked] = own
        self.differing |= not np.array_equal(own, self.kept[self.asked])
        return self.kept[self.asked].copy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of the same x, one of fewer records, a public file of before, and a release between."""
    made = tmp_path_factory.mktemp("blind")
    survey(1, 600).to_parquet(made / "one.parquet")
    survey(2, 600, wild=True).to_parquet(made / "other.parquet")
    survey(3, 37, wild=True).to_parquet(made / "few.parquet")
    survey(4, 900).to_parquet(made / "before.parquet")
    survey(5, 600).to_parquet(made / "between.parquet")
    job = JOB.format(**PLAIN | {"reference": PUBLIC.format(folder=made)})
    dpdist.run(parse_job(job), made / "chain", input=made / "between.parquet")
    return made


Keys = Callable[[str], AbstractContextManager[None]]


@contextmanager
def under(noisy: Noisy) -> Iterator[None]:
    """Runs get their noise from here: it is the instrument; all else is as in a release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobFit, "noise", lambda fit, stratum, *_: noisy.of(stratum))
        patch.setattr(Measurement, "under", lambda query, noise: noisy.under(query, noise))
        patch.setattr("dpdist.runtime.reference._noise", noisy.of_frame)
        yield


def public(job: str, workspace: Path, input: Path, noisy: Noisy, keys_of: Keys) -> dict[str, bytes]:
    with under(noisy), keys_of("blind"):
        dpdist.run(parse_job(job), workspace, input=input)
    folder = workspace / "public"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


OFTEN = {
    "tables, two outcomes, strata",
    "tables, raked, Gaussian",
    "tables, histograms",
    "tables, add_remove",
    "tables, chain",
    "laplace_composed, protected, PSUs",
    "perturbed_histogram, protected, strata",
    "sanitized statistics, protected, Gaussian",
    "weighted marginals, protected",
    "modips, protected",
}
"""Every mechanism, every kind of reference and every key once; the other variants are `long`."""
CONTROLLED = {"tables, add_remove", "modips, protected"}
"""Of these, and of all that is `long`, a run with sums of its own shows that its bytes follow from them."""


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.long]) for name in VARIANTS]
)
def test_public_bytes_follow_from_the_noisy_sums_alone(variant: str, folder: Path, tmp_path: Path, keys_of: Keys) -> None:
    said = PLAIN | VARIANTS[variant]
    job = JOB.format(**said | {"reference": said["reference"].format(folder=folder)})
    others = ["other.parquet", "few.parquet"] if said["adjacency"] == "add_remove" else ["other.parquet"]
    noisy = Noisy()
    one = public(job, tmp_path / "one", folder / "one.parquet", noisy, keys_of)
    used = noisy.used
    assert used
    for name in others:
        noisy.imposing, noisy.used = True, 0
        other = public(job, tmp_path / name, folder / name, noisy, keys_of)
        assert noisy.used == used
        assert other.keys() == one.keys()
        assert [path for path in one if one[path] != other[path]] == []
        assert noisy.differing, "control"
        noisy.differing = False
    if variant in OFTEN - CONTROLLED:
        return
    free = public(job, tmp_path / "control", folder / others[0], Noisy(), keys_of)
    differing = {path for path in one if one[path] != free[path]}
    assert {"tables/salaries.parquet", "released/set-1.json"} <= differing, "control"
