"""Small studies, one or more of every kind, whose tables of results are recorded: shipped ones with few and small cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from golden_runs import Content, content_of
from named_draws import named
from shipped_surveys import Said

from dpdist.job.loading import find_job
from dpdist.studies.kinds import parse_study
from dpdist.studies.run import run

_SURVEY = {"population": 8000, "sample": 800}
_TABULATED = ["fbs", "fbs_expected", "fbp_N_n", "fbs_inverse", "fbs_fixed_point_parameters"]
STUDIES: dict[str, Said] = {
    "global_dp_beta": {"cases": {"beta": {"n": 200}}, "epsilons": ["4"], "draws": 100},
    "vector_weights_counts": {"cases": {"poisson": {"n": 200}, "nb": {"n": 200}}, "draws": 100},
    "fbs_fbp_laplace": {"cases": {"normal": _SURVEY}, "sets": [2], "draws": 100, "mechanisms": _TABULATED},
    "modips_normal": {
        "cases": {"n100": {}},
        "epsilons": ["1"],
        "files": 5,
        "mechanisms": ["m1", "m5", "m3_truncated", "m5_variance"],
    },
}
"""By a shipped study's name: its cases and mechanisms that stay, cases with keys of their own, and other keys."""


def study(name: str) -> Said:
    path = find_job("doctorates").parent / "studies" / f"{name}.yaml"
    made: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    own = STUDIES[name]
    kept_cases = [case | own["cases"][case["name"]] for case in made["cases"] if case["name"] in own["cases"]]
    left_out = ("figures", "beside", "notes", "limits")
    arms = [arm for arm in made.get("mechanisms", []) if arm.get("label") in own.get("mechanisms", [arm.get("label")])]
    made = {key: value for key, value in made.items() if key not in left_out} | own
    made |= {"mechanisms": arms} if arms else {}
    for arm in arms:
        names = [case["name"] for case in kept_cases]
        if "cases" in arm:
            arm["cases"] = [each for each in arm["cases"] if each in names] or names[:1]
        if "epsilons" in arm:
            arm["epsilons"] = [each for each in arm["epsilons"] if each in own["epsilons"]] or own["epsilons"][-1:]
    return made | {"cases": kept_cases, "replicates": 1, "runtime": {"executor": "serial"}}


def studied(name: str, inputs: Path, folder: Path) -> dict[str, Content]:
    """Run a study of one replicate and read its tables, not its page."""
    with named(name):
        run(parse_study(json.dumps(study(name))), folder, data=inputs)
    tables = sorted(path for path in folder.glob("*") if path.suffix in (".csv", ".parquet"))
    return {path.name: content_of(path) for path in tables}
