"""What a statement promises, of which part of a record, and for which files: every mechanism under every adjacency."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from fractions import Fraction
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.errors import DataError, JobError
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab
from dpdist.job import SPECS, WEIGHT_RULES, Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.planning.goodness_of_fit import GoodnessOfFit, ModelMisfit
from dpdist.privacy.adjacency import REFUSED
from dpdist.privacy.claims import delta_of_draws, factor, headline, promised
from dpdist.publish.accuracy import design_left_out
from dpdist.publish.released import ReleasedObject
from dpdist.publish.statement import statement
from dpdist.sampling import facts

ROOT = Path(__file__).parents[2]
JOB = """
dataset: said
period: "2021"
columns:
  field: {{levels: [arts, law]}}
  salary: {{bounds: {bounds}{clip}}}
  {bounded}
{survey}
{strata}
outcome: {outcome}
model: {model}
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "1", adjacency: {adjacency}}}
{more}
tables:
  - {{name: one, by: [field], statistics: [count, {{mean: salary}}]}}
"""
PLAIN = {
    "bounds": "[1000, 200000]",
    "clip": ", outside: clip",
    "bounded": "weight: {bounds: [0, 100], outside: clip}",
    "survey": "survey: {weight: weight}",
    "strata": "",
    "model": "null",
    "outcome": "salary",
    "more": "",
}
ROOMS = {
    "bounded": "weight: {bounds: [0, 100], outside: clip}\n  rooms: {bounds: [1, 4], whole: true, outside: clip}",
    "strata": "strata: [field]",
    "outcome": "[salary, rooms]",
}
"""A second outcome, of mechanisms that split by several."""
LOGNORMAL = "{family: lognormal}"
SHARES = {
    "bounds": "[0, 1]",
    "bounded": "",
    "survey": "",
    "strata": "strata: [field]",
    "clip": "",
    "model": "{family: beta}",
    "more": "sampler: {name: grid, draws: 200}",
}
REFERENCE = "reference: {path: before.parquet, period: '2020'}"
CODED = {"bounds": "[0, 1]", "clip": ", whole: true, outside: clip", "strata": "strata: [field]"}
SAID: dict[str, dict[str, str]] = {
    "weighted": {"model": LOGNORMAL, "strata": "strata: [field]", "clip": "", "bounded": ""},
    "unweighted": {"model": LOGNORMAL, "strata": "strata: [field]", "clip": "", "bounded": ""},
    "weighted_e": {"model": LOGNORMAL, "strata": "strata: [field]", "clip": "", "bounded": ""},
    "censor_w": SHARES,
    "censor_uw": SHARES,
    "centred": SHARES | {"more": SHARES["more"] + "\n" + REFERENCE},
    "perturbed_histogram": SHARES | {"model": "null", "clip": ", outside: clip", "more": ""},
    "laplace": {"bounded": ""},
    "laplace_composed": {"mechanism": "laplace_composed, sensitivity: public"},
    "tables": {"more": REFERENCE},
    "sanitized_statistics": {"model": LOGNORMAL, "more": REFERENCE},
    "modips": {"mechanism": "modips, law: normal"},
    "flat_laplace": {"mechanism": "flat_laplace, bins: {salary: 4}", "strata": "strata: [field]"},
    "universal_histogram": ROOMS | {"mechanism": "universal_histogram, layers: 2, bins: {salary: 4}"},
    "steps": ROOMS | {"mechanism": "steps, layers: 2, bins: {salary: 4}"},
    "marginals": CODED,
}
ADJACENCIES = ("zero_out", "substitution", "substitution, exchange: anywhere", "add_remove")
SECRET = ADJACENCIES[2:]
BY_SUMS = [name for name in MECHANISMS if SPECS[name].sums_weights]
"""Mechanisms whose noisy sums give secret sizes."""


def job(name: str, adjacency: str = "zero_out", **said: str) -> Job:
    return parse_job(JOB.format(**{"mechanism": name, **PLAIN, **SAID[name], "adjacency": adjacency, **said}))


def statement_of(said: Job) -> dict[str, Any]:
    """As it would be published for 300 records of two cells, or of noisy numbers."""
    crosstab = Crosstab(
        {"field": np.arange(2, dtype=np.int32)}, {"field": ("arts", "law")}, np.full(2, 150), said.strata, ()
    )
    promise = promised(MECHANISMS[said.mechanism.name].promise(said), facts(said))
    thetas = {label: {"prior": "proper"} for label in crosstab.stratum_labels}
    found = statement(ReleasedObject(said, promise, crosstab, (thetas,), Key(b"publish")))
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


CASES = [
    (name, adjacency)
    for name in MECHANISMS
    for adjacency in ADJACENCIES
    if (adjacency not in SECRET or name in BY_SUMS) and (name, adjacency) != ("laplace", "substitution")
]


def test_every_mechanism_has_a_job_here() -> None:
    assert SAID.keys() == MECHANISMS.keys()


@pytest.mark.parametrize(("mechanism", "adjacency"), CASES)
def test_a_statement_says_in_words_what_is_protected_and_what_is_not(mechanism: str, adjacency: str) -> None:
    said = statement_of(job(mechanism, adjacency))
    parts = list(job(mechanism, adjacency).components)
    if said["guarantee"] == "none":
        assert said["protected"] == []
        assert {*parts, "field"} <= {*said["not_protected"]}
        assert "adjacency_in_words" not in said
        assert "no privacy guarantee" in said["guarantee_in_words"]
        return
    secret = adjacency in SECRET
    assert said["protected"][: len(parts)] == parts
    assert ("field" in said["protected"]) == secret == ("field" not in said["not_protected"])
    assert any("presence in the sample" in part for part in said["not_protected"]) != secret
    assert ("visible in the published sample counts" in said["guarantee_in_words"]) != secret
    assert bool(re.search("same|unchanged", said["adjacency_in_words"])) != (adjacency == "add_remove")
    assert all(part in said["adjacency_in_words"] for part in parts) != secret
    assert "k rows" in said["privacy_unit_in_words"]
    assert "central" in said["trust_model"]
    assert said["domain"][-1] == REFUSED
    assert said.get("exchange") == {"substitution": "same_x", SECRET[0]: "anywhere"}.get(adjacency)


@pytest.mark.parametrize(("mechanism", "adjacency"), CASES)
def test_a_statement_says_what_its_class_claims(mechanism: str, adjacency: str) -> None:
    said = statement_of(job(mechanism, adjacency))
    words, screen = said["guarantee_in_words"], headline(said)
    if said["guarantee"] == "asymptotic":
        assert "This is not a differential-privacy guarantee" in words
        assert "not a differential-privacy guarantee" in screen["guarantee"]
        assert "ε" not in screen["guarantee"]
        assert "exchange" not in screen
    elif said["guarantee"] != "none":
        assert "for every file that meets the conditions" in words
        assert "by a factor of at most 2.72" in words
        assert "2.72" in screen["in words"]
        assert ("requires exact draws" in words) == (said["guarantee"] == "strict for exact draws")
    if said["guarantee"].startswith("strict") and adjacency in ("zero_out", "add_remove"):
        dearer = {"laplace_composed": "1", "modips": "5/3"}.get(mechanism, "2")
        assert said["substitution_epsilon"] == dearer
        assert f"ε = {dearer}" in screen["exchange"]
        assert ("at the same x" in screen["exchange"]) == (adjacency == "zero_out")


@pytest.mark.parametrize("mechanism", BY_SUMS)
@pytest.mark.parametrize("adjacency", SECRET)
def test_under_secret_sizes_nothing_is_said_to_be_public_that_is_not(mechanism: str, adjacency: str) -> None:
    """Control: under zero_out all of it is said."""
    texts = {each: json.dumps(statement_of(job(mechanism, each))) for each in (adjacency, "zero_out")}
    for phrase in ("and so is the number of sample records", "presence in the sample"):
        assert phrase not in texts[adjacency]
        assert phrase in texts["zero_out"]
    assert "whose membership is public" not in texts[adjacency]
    assert "whose membership is public" in json.dumps(statement_of(job("tables", strata="strata: [field]")))


@pytest.mark.parametrize("mechanism", [name for name in MECHANISMS if name not in BY_SUMS])
def test_an_exchange_anywhere_is_refused_where_public_counts_show_it(mechanism: str) -> None:
    with pytest.raises(JobError, match="exact sample counts, which reveal a record that moves"):
        job(mechanism, SECRET[0])


def test_an_exchange_anywhere_is_of_substitution() -> None:
    for adjacency in ("zero_out", "add_remove"):
        with pytest.raises(JobError, match=f"no record is exchanged under {adjacency}"):
            job("tables", f"{adjacency}, exchange: anywhere")


@pytest.mark.parametrize("more", ["strata: [field]", "rake: [{by: [field], totals: {arts: 1, law: 2}}]"])
def test_an_exchange_anywhere_keeps_sizes_secret(more: str) -> None:
    """Whatever needs public sizes is refused, as under add_remove; control: at the same x it is not."""
    key = "strata" if more.startswith("strata") else "more"
    text = more if key == "strata" else f"{REFERENCE}\n{more}"
    for adjacency in SECRET:
        with pytest.raises(JobError, match=r"keeps sample sizes secret|public number of records"):
            job("tables", adjacency, **{key: text})
    job("tables", "substitution", **{key: text})


RULES = [rule for rule in WEIGHT_RULES if rule != "none"]
FIGURES = {"linear": "half", "cluster": "1.2 times ε", "scalar": "155", "inverse": "87", "fixed_point": "6.5 times ε"}


@pytest.mark.parametrize("rule", RULES)
def test_every_weight_rule_has_its_caution_with_figures(rule: str) -> None:
    said = statement_of(job("weighted", mechanism=f"weighted, weights: {rule}"))
    assert WEIGHT_RULES[rule].exceeds in said["cautions"]
    assert any(FIGURES[rule] in caution and rule.replace("_", "-") in caution for caution in said["cautions"])
    assert any("whether" in text or "fallback: refuse" in text for text in said["assumptions"])


def test_reweighting_and_weights_fixed_on_a_reference_have_the_cautions_that_apply() -> None:
    again = statement_of(job("weighted", mechanism="weighted, weights: {rule: fixed_point, reweight: 0.9}"))
    assert any("re-weighted" in caution for caution in again["cautions"])
    frozen = statement_of(job("weighted", mechanism="weighted", more=REFERENCE))
    assert not any("left out" in caution or "anew" in caution for caution in frozen["cautions"])


def texts_of(said: Any) -> list[str]:
    """Every text of a statement."""
    if isinstance(said, dict | list):
        return [text for each in (said.values() if isinstance(said, dict) else said) for text in texts_of(each)]
    return [said] if isinstance(said, str) else []


TO_A_CUSTODIAN = re.compile(
    r"`dpdist [a-z]|--[a-z]|before publishing|[Pp]ublish (?:it|this)|[Ss]tate survey|[Uu]se the mechanism"
)
"""What only the custodian can do. Users of a release have neither commands on it nor the evaluation."""


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_a_statement_speaks_to_the_users_of_a_release(name: str, adjacency: str) -> None:
    clusters = "survey: {weight: weight, psu: psu}"
    by_psu = {} if name in ("laplace", "laplace_composed") or SAID[name].get("survey") == "" else {"survey": clusters}
    said = statement_of(job(name, adjacency, **by_psu))
    assert [text for text in texts_of(said) if TO_A_CUSTODIAN.search(text)] == []


def test_what_a_user_is_told_of_a_design_and_of_a_misfit_names_no_remedy() -> None:
    """Control: the text of a plan, which names one."""
    clustered = job("tables", survey="survey: {weight: weight, psu: psu}")
    fit = GoodnessOfFit("lognormal", (ModelMisfit("count", 9, 0.1, 3.0, 9.0, "arts"),))
    design, misfit = *design_left_out(clustered), *fit.cautions(clustered)
    assert not any(TO_A_CUSTODIAN.search(caution.text) for caution in (design, misfit))
    assert all(TO_A_CUSTODIAN.search(str(caution)) for caution in (design, misfit))


@pytest.mark.parametrize(
    ("mechanism", "weights"),
    [
        ("weighted, weights: fixed_point", {"rule": "fixed_point"}),
        ("weighted, weights: {rule: linear, c: 2}", {"rule": "linear", "c": 2.0, "g": 0.0}),
        ("weighted, weights: cluster", {"rule": "cluster", "g": 0.0, "radius": 0.2}),
        ("weighted, weights: {rule: fixed_point, scale: 0.5}", {"rule": "fixed_point", "scale": 0.5}),
    ],
)
def test_a_statement_lists_the_constants_that_have_an_effect(mechanism: str, weights: dict[str, Any]) -> None:
    """Of the weight rule too. A mechanism without privacy weights has no entry of them."""
    said = statement_of(job("weighted", mechanism=mechanism))["mechanism"]
    assert said == {"name": "weighted", "weights": weights, "fallback": "refuse"}
    assert set(statement_of(job("tables"))["mechanism"]) == {"name", "fallback", "noise"}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_that_a_parametric_law_may_miss_a_real_file_is_said(mechanism: str) -> None:
    said = statement_of(job(mechanism))
    law = {LOGNORMAL: "lognormal", SHARES["model"]: "beta"}.get(SAID[mechanism].get("model", ""))
    assert [
        f"a {law} distribution" in caution for caution in said["cautions"] if "distribution within cells" in caution
    ] == [True] * bool(law)


def test_the_factor_is_rounded_up_and_by_little() -> None:
    for epsilon in ("1e-6", "0.0014", "0.00999", "0.01", "0.5", "1", "3", "6.99", "7", "10.8", "19.9"):
        value = Fraction(str(eval(factor(Fraction(epsilon)).replace(",", ""))))
        exact = Decimal(epsilon).exp()
        assert exact <= Decimal(value.numerator) / Decimal(value.denominator) <= exact * Decimal("1.01"), epsilon
    assert factor(Fraction(1000)) == "10^435"
    assert factor(Fraction(10**9)) == "10^434,294,482"


def test_draws_by_rejection_have_the_delta_that_their_bound_implies() -> None:
    said = statement_of(job("censor_uw"))
    assert any("δ = (1 + e^1)γ = 0.0037" in text for text in said["assumptions"])
    assert (
        delta_of_draws(Fraction(2), 3, 1e-3)
        == f"δ = 3(1 + e^2)γ = {1.005 * 3e-3 * (1 + exp(2)):.2g}, which should be below 1/n"
    )
    assert "nothing is guaranteed" in delta_of_draws(Fraction(12), 1, 1e-3)


@pytest.mark.parametrize("epsilon", ["1e-7", "9e-7"])
@pytest.mark.parametrize("key", ["epsilon", "rho"])
def test_budgets_under_which_noise_would_pass_whole_numbers_are_refused(epsilon: str, key: str) -> None:
    budget = f'epsilon: "{epsilon}"' if key == "epsilon" else f'rho: "{epsilon}", delta: "1e-6"'
    text = JOB.format(
        **{**PLAIN, **SAID["sanitized_statistics"], "mechanism": "sanitized_statistics", "adjacency": "zero_out"}
    )
    with pytest.raises(JobError, match=r"between 1e-6 and 1e9: below 1e-6 the noise would exceed 2\^53"):
        parse_job(text.replace('epsilon: "1"', budget))


def test_no_set_has_less_than_the_least_budget() -> None:
    """Control: half as many sets."""
    text = JOB.format(**{**PLAIN, **SAID["modips"], "adjacency": "zero_out"})
    text = text.replace('epsilon: "1"', 'epsilon: "4e-6"')
    with pytest.raises(JobError, match="with 5 sets, less than 1e-6 is left for each"):
        parse_job(text + "synthetic_sets: 5\n")
    assert parse_job(text + "synthetic_sets: 4\n").epsilon_per_set == Fraction(1, 10**6)


def test_what_the_job_states_to_be_public_is_printed() -> None:
    sentence = "how many people answered; others have no record"
    said = statement_of(job("tables", more=f"{REFERENCE}\nassumed_public: ['{sentence}']"))
    assert f"the job states: {sentence}" in said["public"]
    with pytest.raises(JobError, match=r"a control character in 'a \\x1b"):
        job("tables", more=f'{REFERENCE}\nassumed_public: ["a \\e[31m word"]')


BROKEN: dict[str, tuple[dict[str, object], str]] = {
    "missing outcome": ({"salary": np.nan}, "salary: not missing"),
    "infinite outcome": ({"salary": np.inf}, "finite"),
    "negative outcome": ({"salary": -1.0}, "not below 0 (values outside the bounds are clipped)"),
    "missing weight": ({"weight": np.nan}, "weight: not missing, finite, above 0"),
    "infinite weight": ({"weight": np.inf}, "weight: not missing, finite, above 0"),
    "zero weight": ({"weight": 0.0}, "weight: not missing, finite, above 0"),
    "undeclared level": ({"field": "music"}, "stratum, field: every record has one of the declared levels"),
    "single PSU": ({"stratum": 2, "psu": 99}, "two or more PSUs in every design stratum"),
    "missing PSU": ({"psu": None}, "psu: not missing"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_refuses_a_file_is_named_in_the_domain(case: str, tmp_path: Path) -> None:
    """Control: the file before it was broken is valid."""
    rng, n = np.random.default_rng(3), 400
    rows = pd.DataFrame(
        {
            "field": rng.choice(["arts", "law"], n),
            "stratum": 1,
            "psu": rng.integers(0, 20, n).astype(object),
            "salary": np.exp(rng.normal(10.5, 0.5, n)),
            "weight": np.exp(rng.normal(2.0, 0.5, n)),
        }
    )
    rows.assign(salary=rows["salary"] * 1.1).to_parquet(tmp_path / "before.parquet")
    survey = "survey: {weight: weight, design_strata: [stratum], psu: psu}"
    said = job(
        "sanitized_statistics",
        survey=survey,
        bounded="stratum: {levels: [1, 2]}\n  weight: {bounds: [0, 100], outside: clip}",
        more=f"reference: {{path: {tmp_path}/before.parquet, period: '2020'}}",
    )
    rows.to_parquet(tmp_path / "now.parquet")
    dpdist.validate(said, input=tmp_path / "now.parquet")
    values, named = BROKEN[case]
    for name, value in values.items():
        rows.loc[0, name] = value
    rows.to_parquet(tmp_path / "odd.parquet")
    with pytest.raises(DataError):
        dpdist.validate(said, input=tmp_path / "odd.parquet")
    assert any(named in rule for rule in statement_of(said)["domain"])


WRONG = (
    "any other record's",
    "its cell included",
    "not dearer under substitution",
    "not\ndearer under substitution",
    "clean the file first",
    "leave the others out of the file first",
    "one record for another",
    "against substitution ε",
)


def test_no_text_promises_more_than_an_exchange_at_the_same_x() -> None:
    """README, jobs and package. Control: the phrases are those that a reader would take for more."""
    files = [ROOT / "README.md", *(ROOT / "jobs").rglob("*.yaml"), *(ROOT / "dpdist").rglob("*.py")]
    assert len(files) > 200
    found = [(path.name, phrase) for path in files for phrase in WRONG if phrase in path.read_text(encoding="utf-8")]
    assert found == []
