"""registry.yaml: an entry that the deployments registry takes, with the statement's own claims and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from public_files import statement_of
from small_release import JOB, survey

import dpdist
from dpdist.core.errors import JobError
from dpdist.job.loading import parse_job
from dpdist.publish.writers.codebook import entry

REGISTRY = """
presentation:
  responsible: Agency of Statistics
  registry:
    intended_use: planning of schools
    region: Nowhere
    sector: Education
    url: https://agency.example/release
    publication_date: 2024-05-01
    tuning: the budget was set by the board, on no data
    justification: noise is small beside sampling error
"""


TEXT = {"type": "string", "minLength": 1}
NUMBER = {"type": "number"}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
PRODUCTS = ("Summary statistics", "Machine learning model", "Dataset", "Synthetic data", "Interactive API", "SQL queries")
VARIANTS = ("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom")


def of(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """An object of these keys, each of its kind, and no others."""
    known = {**required, **(optional or {})}
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": known}


def one_of(*names: object) -> dict[str, Any]:
    return {"enum": list(names)}


TIER_3 = of(
    {
        "url_slug": {"type": "string", "pattern": "^[a-z0-9-]+$"},
        "status": one_of("Converted", "Draft", "Pending", "Changes Required", "Approved"),
        "tier": one_of(3),
        "deployment": of(
            {
                "basic": of(
                    {
                        **dict.fromkeys(("name", "description", "intended_use", "data_product_region"), TEXT),
                        "data_curators": TEXTS,
                        "data_product_type": one_of(*PRODUCTS),
                        "publication_date": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
                    },
                    {"data_product_sector": one_of(*SECTORS)},
                ),
                "dp_variant": of({"variant_name": one_of(*VARIANTS), "data_domain": TEXT, "unprotected_quantities": TEXT}),
                "privacy_loss": of(
                    {
                        **dict.fromkeys(("privacy_unit", "privacy_unit_details", "privacy_parameters_details"), TEXT),
                        "privacy_parameters": of({}, {"epsilon": NUMBER, "delta": NUMBER, "rho": NUMBER}),
                    }
                ),
                "deployment_model": of(
                    {
                        "model_name": one_of("Local", "Central", "Shuffle", "Federated", "Varies"),
                        "actors": TEXT,
                        "release_type": one_of("One release", "Many releases"),
                        "data_source_type": one_of("Static", "Dynamic"),
                        "access_type": one_of("Interactive", "Non-interactive"),
                    }
                ),
                "accounting": of({"post_processing": TEXT, "composition": TEXT}),
                "implementation": of(
                    dict.fromkeys(("preprocessing_and_hyperparameter_tuning", "mechanisms", "justification"), TEXT)
                ),
                "administrative": of({"registry_authors": TEXTS}, {"sources": TEXT, "notes": TEXT}),
            }
        ),
    }
)
"""Names and enumerations of the registry's own schema, of July 2026; of every part what tier 3 asks for."""


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    survey().to_parquet(folder / "survey.parquet")
    return Path(dpdist.run(parse_job(JOB + REGISTRY), folder / "ws", input=folder / "survey.parquet"))


def test_the_entry_is_one_of_the_registrys_and_says_what_the_statement_says(public: Path) -> None:
    made = yaml.safe_load((public / "registry.yaml").read_text(encoding="utf-8"))
    said = statement_of(public)
    jsonschema.validate(made, TIER_3)
    deployment = made["deployment"]
    assert deployment["dp_variant"]["variant_name"] == "Pure DP"
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": 3.0, "delta": 0.0}
    assert deployment["privacy_loss"]["privacy_parameters_details"] == said["guarantee_in_words"]
    assert all(one in deployment["dp_variant"]["unprotected_quantities"] for one in said["not_protected"])
    assert said["adjacency_in_words"] in deployment["privacy_loss"]["privacy_unit_details"]
    assert deployment["basic"]["publication_date"] == "2024-05-01"
    assert deployment["administrative"]["sources"] == "https://agency.example/release"
    assert made["url_slug"] == "small-2021-agency-of-statistics"
    del deployment["privacy_loss"]["privacy_unit"]
    with pytest.raises(jsonschema.ValidationError, match="privacy_unit"):
        jsonschema.validate(made, TIER_3)


@pytest.mark.parametrize(
    ("changed", "flavor"),
    [
        ({"delta": "1e-6"}, "Approximate DP"),
        ({"rho": "1/2", "delta": "1e-6"}, "Zero-concentrated DP"),
        ({"guarantee": "strict for exact draws"}, "Custom"),
    ],
)
def test_the_flavor_is_the_guarantees(public: Path, changed: dict[str, str], flavor: str) -> None:
    job, said = parse_job(JOB + REGISTRY), statement_of(public)
    assert job.presentation.registry is not None
    made = entry(job, job.presentation.registry, said | changed)
    jsonschema.validate(made, TIER_3)
    assert made["deployment"]["dp_variant"]["variant_name"] == flavor


def test_without_a_registry_there_is_no_entry(tmp_path: Path) -> None:
    survey().to_parquet(tmp_path / "survey.parquet")
    public = Path(dpdist.run(parse_job(JOB), tmp_path / "ws", input=tmp_path / "survey.parquet"))
    assert not (public / "registry.yaml").exists()


def test_how_choices_were_made_is_said_once_and_an_entry_without_it_is_refused(public: Path) -> None:
    tuning, choices = "    tuning: the budget was set by the board, on no data\n", "  choices: on the survey of 2020\n"
    job = parse_job(JOB + REGISTRY.replace(tuning, "").replace("  registry:", f"{choices}  registry:"))
    said = statement_of(public)
    assert said["choices"] == "the budget was set by the board, on no data"
    assert job.presentation.registry is not None
    made = entry(job, job.presentation.registry, said)
    own = made["deployment"]["implementation"]["preprocessing_and_hyperparameter_tuning"]
    assert own == "on the survey of 2020"
    with pytest.raises(JobError, match=r"add presentation\.choices"):
        parse_job(JOB + REGISTRY.replace(tuning, ""))
