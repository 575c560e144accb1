"""For `publish.folder`: `registry.yaml`, an entry for the public registry of differential-privacy deployments, tier 3.

Facts come from the privacy statement. What dpdist cannot know comes from the job's `presentation.registry`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpdist.core.files import version_of, write_text
from dpdist.job import Job
from dpdist.job.presentation import Registry
from dpdist.job.yaml_lines import as_yaml


def write_registry(path: Path, job: Job, statement: Mapping[str, Any]) -> None:
    """Writes the file if the job asks for it."""
    if job.presentation.registry is not None:
        write_text(path, as_yaml(entry(job, job.presentation.registry, statement)))


def entry(job: Job, registry: Registry, statement: Mapping[str, Any]) -> dict[str, Any]:
    """The entry by the registry's schema of July 2026. It is a draft, on which the registry's board decides."""
    text = job.presentation
    name = text.title or f"{job.dataset}, {job.period}"
    administrative: dict[str, Any] = {"registry_authors": [registry.author or text.responsible]}
    deployment = {
        "basic": {
            "name": name,
            "data_curators": [text.responsible],
            "description": _described(job),
            "intended_use": registry.intended_use,
            "data_product_type": "Summary statistics",
            "data_product_region": registry.region,
            "publication_date": registry.publication_date.isoformat(),
            **({"data_product_sector": registry.sector} if registry.sector else {}),
        },
        **_claimed(statement),
        "deployment_model": {
            "model_name": "Central",
            "actors": statement["trust_model"],
            "release_type": "Many releases" if registry.continual else "One release",
            "data_source_type": "Dynamic" if registry.continual else "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": _listed(statement["post_processing"]),
            "composition": statement["composition"],
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": registry.tuning or text.choices,
            "mechanisms": _listed([_mechanism(job, statement), *statement["assumptions"]]),
            "justification": registry.justification,
        },
        "administrative": administrative | ({"sources": registry.url} if registry.url else {}),
    }
    period = [] if job.period in name else [job.period]
    slug = _slug(name, str(text.responsible), *period)
    return {"url_slug": slug, "status": "Draft", "tier": 3, "deployment": deployment}


def _slug(*texts: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", "-".join(texts).lower()).strip("-")


def _claimed(statement: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {name: float(Fraction(statement[name])) for name in ("epsilon", "delta", "rho") if statement.get(name)}
    return {
        "dp_variant": {
            "variant_name": _variant(statement),
            "data_domain": _listed(statement["domain"]),
            "unprotected_quantities": _listed([*statement["not_protected"], *statement["public"]]),
        },
        "privacy_loss": {
            "privacy_unit": statement["privacy_unit"],
            "privacy_unit_details": _listed([statement["privacy_unit_in_words"], statement["adjacency_in_words"]]),
            "privacy_parameters": parameters,
            "privacy_parameters_details": statement["guarantee_in_words"],
        },
    }


def _described(job: Job) -> str:
    text = job.presentation
    tables = [text.table(table.name).title or table.name for table in job.tables]
    return _listed([*filter(None, (text.universe, text.source)), f"tables: {', '.join(tables)}", *_records(job)])


def _records(job: Job) -> list[str]:
    return [] if job.mechanism.whole_tables else [f"synthetic records: {job.synthetic_sets} set(s)"]


def _variant(statement: Mapping[str, Any]) -> str:
    """The registry's name of the privacy variant; "Custom" if the guarantee holds for exact draws only."""
    if "rho" in statement:
        return "Zero-concentrated DP"
    if statement["guarantee"] != "strict":
        return "Custom"
    return "Pure DP" if statement["delta"] == "0" else "Approximate DP"


def _mechanism(job: Job, statement: Mapping[str, Any]) -> str:
    noise = statement["sampler"].get("noise", "")
    parts = [str(job.mechanism), noise, f"dpdist {version_of('dpdist')}", f"OpenDP {version_of('opendp')}"]
    return "; ".join(filter(None, parts))


def _listed(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)
