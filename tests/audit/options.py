"""Jobs under every option of every mechanism that adds noise under a guarantee, and what neighbours cost under each.

Records of neighbours go through the check that every run begins with. So values beyond public bounds are tried as a file
would bring them. A mechanism runs on a base file, and then on its neighbours along the base file's path.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest
import yaml

from dpdist.audit.likelihood_ratios import BeyondRange, NeighbourQueries, queries_of
from dpdist.confidential.records import Records
from dpdist.core.records import Crosstab, Floats
from dpdist.job import SPECS, Job, MechanismSpec
from dpdist.job.loading import parse_job
from dpdist.mechanisms.modips.query import OutsideDomain
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.mechanisms.tables.cells import ResidualCells
from dpdist.models.protocol import supports
from dpdist.privacy import noise
from dpdist.privacy.guarantees import Concentrated, Strict
from dpdist.sampling import sampler_of
from dpdist.testing.losses import taken_in

Said = dict[str, Any]
KINDS: dict[str, Said] = {
    "zero_out": {"budget": {"epsilon": "1", "adjacency": "zero_out"}},
    "substitution": {"budget": {"epsilon": "1", "adjacency": "substitution"}},
    "add_remove": {"budget": {"epsilon": "1", "adjacency": "add_remove"}, "predictors": {"protect": {"epsilon": "1/4"}}},
    "anywhere": {
        "budget": {"epsilon": "1", "adjacency": "substitution", "exchange": "anywhere"},
        "predictors": {"protect": {"epsilon": "1/4"}},
    },
}
"""What a job says under an adjacency; secret sizes have noisy sample counts."""
SIZE = 12
"""Records of a cell of the base files."""
COLUMNS: dict[str, Said] = {
    "field": {"levels": ["arts", "law"]},
    "sex": {"levels": ["f", "m"]},
    "place": {"levels": ["city", "land"]},
    "pay": {"bounds": [1, 1000], "outside": "clip"},
    "kids": {"bounds": [0, 3], "whole": True, "outside": "clip"},
    "paid": {"bounds": [0, 1], "whole": True, "outside": "clip"},
    "grade": {"bounds": [0, 2], "whole": True, "outside": "clip"},
    "weight": {"bounds": [2, 200], "outside": "clip"},
}
CODED: Said = {"outcome": ["paid", "kids", "pay"], "tables": [{"name": "t", "by": [], "statistics": ["count"]}]}
BINS: Said = {"bins": {"pay": 4}}
CROSSING: list[Said] = [
    {"name": "t", "by": [["field", "sex"], ["field", "place"], ["sex", "place"]], "statistics": ["count", {"mean": "pay"}]}
]
"""Tables of which none contains another, so that each is measured."""
SECRET: Said = {"predictors": None}
"""Secret sizes that noisy sums give, and no noisy sample counts."""
DESIGNED: Said = {"survey": {"weight": "weight", "design_weights": {"by": ["sex"], "weights": {"f": 190, "m": 3}}}}
"""Weights that are public, by a column that the plain table does not have."""
HOUSEHOLD: Said = {"privacy_unit": {"column": "person", "most": 3}}
PROTECTED: Said = {"predictors": {"protect": {}}}
"""Protected predictors whose sizes noisy sums give: neighbours, and the loss, are those of `SECRET`."""
CHOSEN: Said = {"outcome": ["paid", "kids", "grade"], "tables": CODED["tables"]}
PLAIN: dict[str, Said] = {
    "sanitized_statistics": {
        "reference": {"path": "before.parquet"},
        "model": {"family": "lognormal"},
    },
    "tables": {"reference": {"path": "before.parquet"}},
    "laplace_composed": {"mechanism": {"sensitivity": "public"}},
    "modips": {"mechanism": {"law": "normal"}},
    "perturbed_histogram": {"survey": {}, "tables": CODED["tables"]},
    "flat_laplace": CODED | {"mechanism": BINS},
    "universal_histogram": CODED | {"mechanism": BINS | {"layers": 2}},
    "steps": CODED | {"mechanism": BINS | {"layers": 2}},
    "marginals": CHOSEN,
}
"""What a job says beside the mechanism's name."""


def _modips() -> Iterator[Said]:
    of_law: dict[str, Said] = {
        "normal": {},
        "lognormal": {},
        "bernoulli": {"outcome": "paid"},
        "multinomial": {"outcome": "kids"},
    }
    for (law, also), sanitization, truncation in product(
        of_law.items(), ("conjoint", "individual"), ("clamped", "bounded")
    ):
        yield also | {"mechanism": {"law": law, "sanitization": sanitization, "truncation": truncation}}
    for truncation in ("clamped", "bounded"):
        yield {"mechanism": {"law": "normal", "location": "main_effects", "truncation": truncation}}
        yield {"mechanism": {"law": "normal", "variance": 400.0, "truncation": truncation}}
        yield {"mechanism": {"law": "normal", "nested": 2, "truncation": truncation}, "synthetic_sets": 4}
        yield {"mechanism": {"law": "normal", "truncation": truncation}, "survey": {}}
    yield {"mechanism": {"law": "normal", "truncation": "renormalised"}}


VARIANTS: dict[str, list[Said]] = {
    "sanitized_statistics": [
        {"mechanism": {"shrinkage": False}},
        {"mechanism": {"noise": "gaussian"}},
        {"mechanism": {"noise": "gaussian", "shrinkage": False}},
    ],
    "tables": [
        {"reference": {"histogram": {"epsilon": "1/3"}}, "tables": CROSSING},
        {"reference": {"histogram": {"epsilon": "1/3"}}, "outcome": ["pay", "kids"], "tables": CROSSING},
        {"reference": {"histogram": {"epsilon": "1/3"}}, "survey": {}},
        {"reference": {"histogram": {"epsilon": "1/3"}}, "mechanism": {"noise": "gaussian"}},
        HOUSEHOLD | {"reference": {"histogram": {"epsilon": "1/3"}}},
        {"mechanism": {"noise": "gaussian"}},
        {"tables": CROSSING},
        {"tables": CROSSING, "mechanism": {"objective": "largest"}},
        {"tables": CROSSING, "mechanism": {"prediction": "trees"}},
        {"tables": CROSSING, "mechanism": {"prediction": "best"}},
        {"outcome": ["pay", "kids"], "tables": CROSSING},
        HOUSEHOLD | {"tables": CROSSING},
        {"survey": {}},
        DESIGNED | {"tables": CROSSING},
        DESIGNED | {"outcome": ["pay", "kids"], "mechanism": {"noise": "gaussian"}},
        SECRET,
        SECRET | {"outcome": ["pay", "kids"], "tables": CROSSING},
        SECRET | {"tables": CROSSING, "mechanism": {"noise": "gaussian"}},
        SECRET | {"tables": CROSSING, "mechanism": {"objective": "largest"}},
        PROTECTED | HOUSEHOLD | {"tables": CROSSING},
    ],
    "laplace_composed": [
        {"mechanism": {"sensitivity": "public", "consistency": "least_squares"}},
        {"mechanism": {"sensitivity": "local"}},
    ],
    "modips": list(_modips()),
    "perturbed_histogram": [{"mechanism": {"bins": 7}}],
    "flat_laplace": [{"outcome": ["paid", "kids"], "mechanism": {}}, {"survey": {}}],
    "universal_histogram": [
        {"outcome": ["paid", "kids"], "mechanism": {"layers": 2}},
        {"mechanism": BINS | {"layers": 3, "order_seed": 4}},
    ],
    "steps": [
        {"outcome": ["paid", "kids"], "mechanism": {"layers": 2}},
        {"mechanism": BINS | {"order": ["kids", "paid", "pay"]}},
        {"mechanism": BINS | {"layers": 2, "selection": "1/3"}},
    ],
    "marginals": [
        {"mechanism": {"select": "given", "marginals": [["paid", "kids"], ["grade"]]}},
        {"mechanism": {"select": "tree"}},
        {"mechanism": {"select": "adaptive"}},
        {"mechanism": {"marginals": [["paid", "kids"], ["grade"]], "sums": [{"of": "kids"}]}},
        {"mechanism": {"select": "privbayes", "degree": 1}},
        {"mechanism": {"select": "privbayes", "usefulness": 2.0}},
        {"mechanism": {"select": "privbayes", "degree": 1, "choice": "1/2"}},
    ],
}
"""What a job says in place of the plain one's, by mechanism."""
OF_ALL: list[Said] = [{"fallback": "pool"}, {"fallback": "proper_prior"}, {"weights": "linear"}]
"""Settings of every mechanism."""


@dataclass(frozen=True)
class Option:
    """A job under one choice of a mechanism's options."""

    mechanism: str
    kind: str
    said: str
    """What differs from the plain job, as YAML; empty for the plain one."""

    @cached_property
    def job(self) -> Job:
        """Raises `JobError` where the job's checks refuse it."""
        return parse_job(yaml.safe_dump(job_text(self.mechanism, self.kind, yaml.safe_load(self.said) or {})))

    @property
    def options(self) -> dict[str, str]:
        """What the job says of each key of its mechanism, as `options` names it; it may be refused."""
        text = job_text(self.mechanism, self.kind, yaml.safe_load(self.said) or {})["mechanism"]
        spec, found = SPECS[self.mechanism], dict[str, str]()
        for name, choices in options(spec).items():
            field = spec.model_fields[name]
            value = text.get(name, None if field.is_required() else field.get_default(call_default_factory=True))
            plain = name not in text
            found[name] = str(value) if str(value) in choices else DEFAULT if plain else OTHER
        return found


def option(mechanism: str, kind: str = "zero_out", /, **said: Any) -> Option:
    return Option(mechanism, kind, yaml.safe_dump(said) if said else "")


def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the noise, in the sampler itself, which every way to draw comes to."""
    for name in ("whole_laplace", "whole_gaussian"):
        real = getattr(noise, name)
        monkeypatch.setattr(noise, name, lambda scale, size, real=real: real(scale / 2, size))


def job_text(mechanism: str, kind: str, said: Mapping[str, Any]) -> Said:
    """A job; what `said` says of the mechanism takes the place of the plain job's."""
    plain = PLAIN[mechanism]
    made = {"outcome": "pay", "survey": {"weight": "weight"}, "synthetic_sets": 1} | plain | KINDS[kind] | dict(said)
    own = said.get("mechanism", plain.get("mechanism", {}))
    outcomes = [made["outcome"]] if isinstance(made["outcome"], str) else made["outcome"]
    mean = {"mean": outcomes[0]}
    tables = [{"name": "t", "by": ["field"], "statistics": ["count", mean]}]
    budget = made["budget"] | ({"delta": "1e-6"} if own.get("noise") == "gaussian" else {})
    made = {"dataset": "audit", "period": "1", "tables": tables} | made
    of_weights = made["survey"].get("design_weights", {}).get("by", [])
    columns = dict.fromkeys([*_columns_of(made["tables"]), *of_weights])
    names = [*outcomes, *(["weight"] if made["survey"] else []), *columns]
    return made | {
        "budget": budget,
        "columns": {name: COLUMNS[name] for name in names},
        "mechanism": {"name": mechanism, **own},
    }


def _columns_of(tables: list[Said]) -> Iterator[str]:
    for by in (by for table in tables for by in table["by"]):
        yield from [by] if isinstance(by, str) else by


ALL = [
    Option(mechanism, kind, yaml.safe_dump(said, default_flow_style=True, width=1000).strip() if said else "")
    for mechanism in PLAIN
    for kind in KINDS
    for said in (
        {},
        *VARIANTS[mechanism],
        *({"mechanism": PLAIN[mechanism].get("mechanism", {}) | each} for each in OF_ALL),
        HOUSEHOLD,
    )
    if "predictors" not in said or "predictors" in KINDS[kind]
]
"""Every job: the plain one, under settings of its own, of all mechanisms, and of households."""


def worst(option: Option, all_bases: bool = False, intake: Any = taken_in) -> float:
    """The largest loss of neighbours under the job's adjacency over what the claim leaves sums and choices.

    It is infinite if a sum is not within the public range of what is drawn. `intake` is what files pass on their way in.
    """
    job, losses = option.job, []
    few = 1 if job.mechanism.name == "tables" else 2  # limits of tables do not follow from the file
    for base in bases(job) if all_bases else list(bases(job))[:few]:
        try:
            losses += [pair.loss for pair in _pairs(job, base, tried(job, all_bases), intake)]
        except (BeyondRange, OutsideDomain):
            losses.append(np.inf)
    return max(losses) / claim_of_sums(job)


def claim_of_sums(job: Job) -> float:
    """What the budget leaves sums and choices: ρ under Gaussian noise, otherwise ε."""
    return float(job.rho.release if job.mechanism.gaussian else job.budget.epsilon - job.epsilon.crosstab)


def farthest(option: Option) -> NeighbourQueries:
    """The neighbours under the job's adjacency that lose most, of a file drawn at random."""
    base = next(bases(option.job))
    return max(_pairs(option.job, base, tried(option.job, False), taken_in), key=lambda pair: pair.loss)


def worst_exchange(option: Option) -> float:
    """The largest loss of an exchange at the same predictors over what the release states of it."""
    job, total = option.job, mechanism_of(option.job).promise(option.job).total
    assert isinstance(total, Strict | Concentrated)
    stated = total.substitution_rho if isinstance(total, Concentrated) else total.substitution_epsilon
    pairs = _pairs(job, next(bases(job)), tried(job, False), taken_in, exchange=True)
    return max(pair.loss for pair in pairs) / float(stated)


class Once:
    """A sampler for a path: files that have the same answers have the same posterior, which is drawn from once."""

    def __init__(self, sampler: Any) -> None:
        self._sampler, self._drawn = sampler, dict[bytes, Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def draw(self, model: Any, posterior: Any, rng: np.random.Generator) -> Any:
        key = pickle.dumps((posterior, rng.bit_generator.state))
        if key not in self._drawn:
            self._drawn[key] = self._sampler.draw(model, posterior, rng)
        return self._drawn[key]


def estimated_once(estimated: Callable[..., Any]) -> Callable[..., Any]:
    """Estimates of `tables`, which end its rounds: the same for all files of a path."""
    made = dict[bytes, Any]()

    def known(model: ResidualCells, sums: Any, noisy: Floats) -> Any:
        key = noisy.tobytes()
        if key not in made:
            made[key] = estimated(model, sums, noisy)
        return made[key]

    return known


def _pairs(job: Job, base: Records, single: Records, intake: Any, exchange: bool = False) -> Iterator[NeighbourQueries]:
    """Pairs of files: the base with one of the records, and without it or with another one.

    Under a privacy unit that record stands there as often as a unit's records count: k like ones move sums the farthest.
    """
    model, learned, sampler = *_model(job), Once(sampler_of(job, None))  # type: ignore[arg-type]
    alone = distinct(intake(job, single))
    files = [joined(base, *[alone.part(k, k + 1)] * job.most_records) for k in range(len(alone))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResidualCells, "estimated", estimated_once(ResidualCells.estimated))
        path = queries_of(job, model, learned, sampler, base)
        found = [queries_of(job, model, learned, sampler, file, path).queries for file in files]
    if job.budget.adjacency != "substitution" and not exchange:
        yield from (NeighbourQueries(one, path.queries) for one in found)
        return
    for one, other in product(range(len(found)), repeat=2):
        if one < other and (job.budget.exchange == "anywhere" or alone.row[one] == alone.row[other]):
            yield NeighbourQueries(found[one], found[other])


def crosstab_of(job: Job) -> Crosstab:
    levels = {name: job.columns[name].levels or () for name in job.categories}
    codes = list(np.indices([len(each) for each in levels.values()]).astype(np.int32)) if levels else []
    flat = {name: each.ravel() for name, each in zip(levels, codes, strict=True)}
    return Crosstab(flat, levels, np.full(codes[0].size if codes else 1, SIZE + 1), job.strata, ())


def _model(job: Job) -> tuple[Any, Any]:
    """The mechanism's model, and what it learned from a reference of its own."""
    crosstab = crosstab_of(job)
    model = builder_of(job).build(job, crosstab, slice(0, len(crosstab)))
    reference = _drawn(job, 7, 60)
    if (public := job.survey.design_weights) is not None:  # as a run gives a reference the declared weights
        reference = replace(reference, weight=public.of(crosstab)[reference.row])
    learned = model.learned(reference, None) if job.has_reference and supports(model, "learned") else None
    return model, learned


def _drawn(job: Job, seed: int, n: int) -> Records:
    """A random file of n records in every row of the frame."""
    rng, rows = np.random.default_rng(seed), len(crosstab_of(job))
    cell = np.repeat(np.arange(rows), n)
    outcomes = np.column_stack([_values(job, name, rng, len(cell)) for name in job.outcomes])
    weight = np.clip(np.exp(rng.normal(2.5, 0.8, len(cell))), 2.0, 200.0) if job.survey.weight else np.ones(len(cell))
    return records(cell, outcomes, weight)


def _values(job: Job, name: str, rng: np.random.Generator, n: int) -> Floats:
    low, high = job.columns[name].bounds or (0.0, 1.0)
    if job.columns[name].whole:
        return rng.integers(int(low), int(high) + 1, n).astype(float)
    return np.asarray(np.clip(np.exp(rng.normal(4.5, 0.6, n)), low, high))


def bases(job: Job) -> Iterator[Records]:
    """Base files: drawn at random; all records heavy and at one end of the outcomes; all light and at the other end."""
    rows = len(crosstab_of(job))
    yield _drawn(job, 3, SIZE)
    cell = np.repeat(np.arange(rows), SIZE)
    for end in (1, 0):
        ends = [(job.columns[name].bounds or (0.0, 1.0))[end] for name in job.outcomes]
        weight = (2.0, 200.0)[end] if job.survey.weight else 1.0
        yield records(cell, np.tile(ends, (len(cell), 1)), np.full(len(cell), weight))


def tried(job: Job, more: bool) -> Records:
    """Adversarial records: at public bounds, between them and beyond them, in two rows of the frame."""
    ends = [_of(job.columns[name].bounds or (0.0, 1.0), job.columns[name].whole, more) for name in job.outcomes]
    outcomes = list(product(*ends)) if more and len(ends) == 1 else list(zip(*_alike(ends), strict=True))
    if len(ends) > 1:
        outcomes += [tuple(each[(k + number) % len(each)] for number, each in enumerate(ends)) for k in range(3)]
    weights = (1e-12, 2.0, 200.0, 1e9) if job.survey.weight else (1.0,)
    if job.mechanism.name == "sanitized_statistics":
        outcomes, weights = list(product(WITHIN_ELLIPSE["pay"])), (*WITHIN_ELLIPSE["weight"], 1e9)
    weights = (*weights, 30.0) if more and job.survey.weight else weights
    cells = range(min(2, len(crosstab_of(job))))
    rows = [(cell, y, w) for cell in cells for y, w in product(outcomes, weights)]
    rows = [row for number, row in enumerate(rows) if more or row[0] == 0 or number % 3 == 0]
    cell, values, weight = zip(*rows, strict=True)
    return records(np.array(cell), np.array(values, dtype=float), np.array(weight))


WITHIN_ELLIPSE = {"pay": (20.0, 45.0, 90.0, 400.0), "weight": (4.0, 12.0, 36.0)}
"""Values near the centre of `_drawn` and two spreads from it: whitened, the public bounds all lie beyond the ellipse."""


def _of(bounds: tuple[float, float], whole: bool, more: bool) -> list[float]:
    low, high = bounds
    middle = (low + high) / 2.0
    found = [low, high, np.floor(middle) if whole else middle]
    return found if not more or whole else [*found, 0.9 * low, 1e6, low + 0.25 * (high - low)]


def _alike(ends: list[list[float]]) -> list[list[float]]:
    most = max(map(len, ends))
    return [[each[k % len(each)] for k in range(most)] for each in ends]


def records(cell: Any, outcomes: Floats, weight: Any) -> Records:
    return Records.of_outcomes(outcomes, np.asarray(weight, float), np.asarray(cell, np.int32))


def distinct(taken: Records) -> Records:
    """Records as a run stores them, each once: values beyond bounds are clipped to them."""
    rows = np.column_stack([taken.row, taken.outcomes.reshape(len(taken), -1), taken.weight])
    return taken.take(np.sort(np.unique(rows, axis=0, return_index=True)[1]))


def joined(*parts: Records) -> Records:
    both = Records.joined(parts)
    return both.take(np.argsort(both.row, kind="stable"))


DEFAULT, OTHER = "its default", "another value"


def options(spec: type[MechanismSpec]) -> dict[str, set[str]]:
    """The options of every key of a mechanism: each literal, true and false; of other keys, their default and another."""
    own = {name: field for name, field in spec.model_fields.items() if name != "name"}
    return {name: _choices(field.annotation) - ({DEFAULT} if field.is_required() else set()) for name, field in own.items()}


def _choices(annotation: Any) -> set[str]:
    if annotation is bool:
        return {"True", "False"}
    if get_origin(annotation) is Literal:
        return set(map(str, get_args(annotation)))
    if get_origin(annotation) in (Union, UnionType):
        literal = [_choices(each) for each in get_args(annotation) if get_origin(each) is Literal]
        return {DEFAULT, *literal[0]} if literal else {DEFAULT, OTHER}
    return {DEFAULT, OTHER}


def strict_specs() -> dict[str, type[MechanismSpec]]:
    """Mechanisms that add noise, without the one that never promises anything."""
    return {name: spec for name, spec in SPECS.items() if spec.adds_noise and name != "laplace"}
