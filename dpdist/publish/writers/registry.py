"""`registry.yaml`: the release as an entry of the registry of differential-privacy deployments, at its third tier.

What the statement says is taken from it; what dpdist cannot know is the job's `presentation.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpdist.core.files import write_text
from dpdist.job import Job
from dpdist.job.presentation import Registry
from dpdist.job.yaml_lines import written


def write_registry(path: Path, job: Job, statement: Mapping[str, Any]) -> None:
    """Written where the job asks for it."""
    if job.presentation.registry is not None:
        write_text(path, written(entry(job, job.presentation.registry, statement)))


def entry(job: Job, registry: Registry, statement: Mapping[str, Any]) -> dict[str, Any]:
    text = job.presentation
    deployment = {
        "short_name": text.title or f"{job.dataset}, {job.period}",
        "data_curator": text.responsible,
        "intended_use": registry.intended_use,
        "data_product_type": "summary statistics" if _tables_alone(job) else "summary statistics and synthetic records",
        "data_product_description": _described(job),
        "publication_date": registry.publication_date.isoformat(),
        **({"additional_information_url": registry.url} if registry.url else {}),
        **_claimed(statement),
        "model": {
            "model_type": "Central",
            "actors": statement["trust_model"],
            "release_type": "Continual" if registry.continual else "One-shot",
            "interactivity": "Non-interactive",
        },
        "additional_dp_information": {
            "post_processing": _listed(statement["post_processing"]),
            "composition": statement["composition"],
        },
        "implementation": {
            "pre_processing_eda_hyperparameter_tuning": registry.tuning,
            "mechanisms": _listed([_mechanism(job, statement), *statement["assumptions"]]),
            "justification": registry.justification,
        },
    }
    return {"approved": False, "registry_author": registry.author or text.responsible, "deployment": deployment}


def _claimed(statement: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {name: float(Fraction(statement[name])) for name in ("epsilon", "delta", "rho") if statement.get(name)}
    return {
        "dp_flavor": {
            "name": _flavor(statement),
            "data_domain": _listed(statement["domain"]),
            "unprotected_quantities": _listed([*statement["not_protected"], *statement["public"]]),
        },
        "privacy_loss": {
            "privacy_unit": statement["privacy_unit"],
            "privacy_unit_description": _listed([statement["privacy_unit_in_words"], statement["adjacency_in_words"]]),
            "privacy_parameters": parameters,
            "privacy_parameters_description": statement["guarantee_in_words"],
        },
    }


def _tables_alone(job: Job) -> bool:
    return job.mechanism.whole_tables


def _described(job: Job) -> str:
    text = job.presentation
    tables = [text.table(table.name).title or table.name for table in job.tables]
    return _listed([*filter(None, (text.universe, text.source)), f"tables: {', '.join(tables)}"])


def _flavor(statement: Mapping[str, Any]) -> str:
    """As the registry names it; a guarantee that holds for exact draws only is none of its named ones."""
    if "rho" in statement:
        return "Zero Concentrated DP"
    if statement["guarantee"] != "strict":
        return "other"
    return "Pure DP" if statement["delta"] == "0" else "Approximate DP"


def _mechanism(job: Job, statement: Mapping[str, Any]) -> str:
    noise = statement["sampler"].get("noise", "")
    parts = [job.mechanism.name, noise, f"dpdist {version('dpdist')}", f"OpenDP {version('opendp')}"]
    return "; ".join(filter(None, parts))


def _listed(texts: Sequence[str]) -> str:
    """Markdown: an item a text."""
    return "\n".join(f"- {text}" for text in texts)
