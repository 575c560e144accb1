"""registry.yaml: an entry that the deployments registry takes, with the statement's own claims and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from small_release import JOB, survey

import dpdist
from dpdist.job.loading import parse_job
from dpdist.publish.writers.registry import entry

REGISTRY = """
presentation:
  responsible: Agency of Statistics
  registry:
    intended_use: planning of schools
    publication_date: 2024-05-01
    tuning: the budget was set by the board, on no data
    justification: noise is small beside sampling error
"""


def of(required: list[str], optional: list[str] | None = None, **kinds: Any) -> dict[str, Any]:
    """An object of these keys and no others, texts where no kind is given."""
    text = {"type": "string", "minLength": 1}
    known = {name: kinds.get(name, text) for name in (*required, *(optional or ()))}
    return {"type": "object", "additionalProperties": False, "required": required, "properties": known}


PARAMETERS = of([], ["epsilon", "rho", "delta"], **{key: {"type": "number"} for key in ("epsilon", "rho", "delta")})
FLAVORS = {"enum": ["Pure DP", "Approximate DP", "Zero Concentrated DP", "other"]}
TIER_3 = of(
    ["approved", "registry_author", "deployment"],
    approved={"type": "boolean"},
    deployment=of(
        [
            *("short_name", "data_curator", "intended_use", "data_product_type", "data_product_description"),
            *("publication_date", "dp_flavor", "privacy_loss", "model", "additional_dp_information", "implementation"),
        ],
        ["additional_information_url"],
        publication_date={"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
        dp_flavor=of(["name", "data_domain", "unprotected_quantities"], name=FLAVORS),
        privacy_loss=of(
            ["privacy_unit", "privacy_parameters"],
            ["privacy_unit_description", "privacy_parameters_description"],
            privacy_parameters=PARAMETERS,
        ),
        model=of(
            ["model_type", "release_type", "interactivity"],
            ["actors", "model_type_description", "release_type_description", "interactivity_description"],
            model_type={"enum": ["Local", "Central", "Shuffle", "Federated"]},
            release_type={"enum": ["One-shot", "Continual"]},
            interactivity={"enum": ["Interactive", "Non-interactive"]},
        ),
        additional_dp_information=of(["post_processing", "composition"]),
        implementation=of(["pre_processing_eda_hyperparameter_tuning", "mechanisms", "justification"]),
    ),
)
"""Names and enumerations of the registry's own schema."""


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    survey().to_parquet(folder / "survey.parquet")
    return Path(dpdist.run(parse_job(JOB + REGISTRY), folder / "ws", input=folder / "survey.parquet"))


def test_the_entry_is_one_of_the_registrys_and_says_what_the_statement_says(public: Path) -> None:
    made = yaml.safe_load((public / "registry.yaml").read_text(encoding="utf-8"))
    said = json.loads((public / "statement.json").read_text(encoding="utf-8"))
    jsonschema.validate(made, TIER_3)
    deployment = made["deployment"]
    assert deployment["dp_flavor"]["name"] == "Pure DP"
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": 3.0, "delta": 0.0}
    assert deployment["privacy_loss"]["privacy_parameters_description"] == said["guarantee_in_words"]
    assert all(one in deployment["dp_flavor"]["unprotected_quantities"] for one in said["not_protected"])
    assert said["adjacency_in_words"] in deployment["privacy_loss"]["privacy_unit_description"]
    assert deployment["publication_date"] == "2024-05-01"
    del deployment["privacy_loss"]["privacy_unit"]
    with pytest.raises(jsonschema.ValidationError, match="privacy_unit"):
        jsonschema.validate(made, TIER_3)


@pytest.mark.parametrize(
    ("changed", "flavor"),
    [
        ({"delta": "1e-6"}, "Approximate DP"),
        ({"rho": "1/2", "delta": "1e-6"}, "Zero Concentrated DP"),
        ({"guarantee": "strict for exact draws"}, "other"),
    ],
)
def test_the_flavor_is_the_guarantees(public: Path, changed: dict[str, str], flavor: str) -> None:
    job, said = parse_job(JOB + REGISTRY), json.loads((public / "statement.json").read_text(encoding="utf-8"))
    assert job.presentation.registry is not None
    made = entry(job, job.presentation.registry, said | changed)
    jsonschema.validate(made, TIER_3)
    assert made["deployment"]["dp_flavor"]["name"] == flavor


def test_without_a_registry_there_is_no_entry(tmp_path: Path) -> None:
    survey().to_parquet(tmp_path / "survey.parquet")
    public = Path(dpdist.run(parse_job(JOB), tmp_path / "ws", input=tmp_path / "survey.parquet"))
    assert not (public / "registry.yaml").exists()
