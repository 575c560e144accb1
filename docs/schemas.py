"""JSON schemas of manifest, statement and proof record, for readers in other languages: `generated.py` writes the pages.

Other keys are allowed: a later dpdist may add keys to a format, and changes none.
"""

from __future__ import annotations

from typing import Any, get_args

from dpdist.core.files import PROOF, RELEASE, STATEMENT
from dpdist.privacy.guarantees import GuaranteeName, Moved
from dpdist.privacy.proof import FORMULAS, TOTALS

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TEXT, WHOLE, BOOLEAN, OBJECT = (
    {"type": "string"},
    {"type": "integer", "minimum": 0},
    {"type": "boolean"},
    {"type": "object"},
)
TEXTS = {"type": "array", "items": TEXT}
EXACT = {
    "type": ["string", "null"],
    "pattern": r"^\d+(\.\d+)?([eE][+-]?\d+)?(/\d+)?$",
    "description": "an exact number, written as text, such as 10.8 or 1/3; null if the guarantee has none",
}
DIGEST = {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "SHA-256, in hexadecimal digits"}
STATED: dict[str, dict[str, Any]] = {
    "guarantee": {"enum": list(get_args(GuaranteeName))},
    **dict.fromkeys(
        ("dataset", "period", "date", "headline", "guarantee_in_words", "adjacency_in_words", "trust_model"), TEXT
    ),
    **dict.fromkeys(("privacy_unit", "privacy_unit_in_words", "other_releases", "combining", "protected_by"), TEXT),
    **dict.fromkeys(
        ("protected", "not_protected", "assumptions", "cautions", "caution_codes", "domain", "public", "standard_errors"),
        TEXTS,
    ),
    **dict.fromkeys(("epsilon", "epsilon_per_set", "substitution_epsilon", "rho", "substitution_rho"), EXACT),
    **dict.fromkeys(("mechanism", "model", "sampler", "reference", "correction", "calibration"), OBJECT),
    "adjacency": {"type": ["string", "null"]},
    "delta": {"type": ["string", "null"], "description": "an exact number, written as text, or words if it has no bound"},
    "composition": TEXT,
    "metered": BOOLEAN,
    "post_processing": TEXTS,
    "privacy_unit_most": WHOLE,
    "synthetic_sets": WHOLE,
}
"""Keys of a statement, with the type of value that every release of this format has."""
ALWAYS = (
    *("dataset", "period", "guarantee", "adjacency", "epsilon", "delta", "composition", "assumptions"),
    *("synthetic_sets", "mechanism", "public", "standard_errors"),
)
"""Keys that every statement has."""


def _numbered(newest: int, about: str = "number of the format; if absent, it is 1") -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": newest, "description": about}


def statement_schema() -> dict[str, Any]:
    """The schema of statement.json."""
    properties = {"format": _numbered(STATEMENT), **STATED}
    return {"$schema": DRAFT, "title": "statement.json", "type": "object", "properties": properties, "required": [*ALWAYS]}


def proof_schema() -> dict[str, Any]:
    """The schema of released/proof.json."""
    distances = {"type": "object", "properties": dict.fromkeys(Moved._fields, EXACT)}
    query = {
        "type": "object",
        "properties": {
            "name": TEXT,
            "law": {
                "enum": list(FORMULAS),
                "description": "the distribution of the noise; `formulas` says how the loss follows from it",
            },
            "distance": {
                "anyOf": [distances, EXACT],
                "description": "the largest change of the sums between neighbours, in the L1 norm",
            },
            "squared_distance": {**distances, "description": "the square of the largest change in the L2 norm"},
            "scale": {
                **EXACT,
                "description": "b of the Laplace distribution, sigma of the Gaussian, in the units of the distance",
            },
            "times": {**WHOLE, "description": "how often the query is asked, each time with new noise"},
            "together": {
                **BOOLEAN,
                "description": "whether the n answers may be given as one, with 1/n of the noise scale",
            },
            "in_parts": {
                **BOOLEAN,
                "description": "whether several answers share the loss of the query, in parts that sum to at most 1",
            },
            "changes": {**distances, "description": "by how many changes, each as large as `distance`, neighbours differ"},
            "sums": {**WHOLE, "description": "how many sums one change affects"},
            "epsilon": {**EXACT, "description": "the stated loss, for each kind of change"},
        },
        "required": ["name", "law", "times"],
    }
    properties = {
        "format": _numbered(PROOF),
        "guarantee": STATED["guarantee"],
        "holds": {**TEXT, "description": "for which files the claim holds"},
        "adjacency": STATED["adjacency"],
        "neighbours": {
            "type": "object",
            "properties": {key: {"enum": [*Moved._fields]} for key in ("claimed", "exchanged")},
            "description": "names of the distances that the claim and its figures for an exchange use",
        },
        "records_of_unit": {
            **WHOLE,
            "description": (
                "k, the largest number of records in a unit: a unit loses k times a record's epsilon, or k^2 times its rho"
            ),
        },
        "formulas": {"type": "object", "additionalProperties": TEXT},
        "queries": {"type": "array", "items": query},
        "composition": {**TEXT, "description": "losses of queries add up; further conditions in words"},
        "total": {"type": "object", "properties": {name: STATED.get(name, EXACT) for name in TOTALS}},
    }
    required = [name for name in properties if name != "format"]
    return {"$schema": DRAFT, "title": "proof.json", "type": "object", "properties": properties, "required": required}


def manifest_schema() -> dict[str, Any]:
    """The schema of manifest.json, whose format is that of the whole public folder."""
    properties = {
        "format": _numbered(RELEASE, "the format of the whole public folder"),
        "release": {
            **DIGEST,
            "description": "the SHA-256 of all other entries, as canonical JSON",
        },
        **dict.fromkeys(("dataset", "period", "date"), TEXT),
        "files": {
            "type": "object",
            "additionalProperties": DIGEST,
            "description": "every other file",
        },
        "reference": {"type": "object", "properties": {"sha256": DIGEST, "chain": {"type": "array"}}},
        "withheld": {
            "type": "object",
            "properties": {"above": {"type": "number"}, "figures": WHOLE},
            "description": "the limit above which figures are withheld, and their number; absent if there is no limit",
        },
        "job": {"type": "object", "description": "the job as it is published"},
        "versions": {"type": "object", "additionalProperties": TEXT, "required": ["dpdist"]},
    }
    required = ["format", "release", "dataset", "period", "files", "job", "versions"]
    return {"$schema": DRAFT, "title": "manifest.json", "type": "object", "properties": properties, "required": required}
