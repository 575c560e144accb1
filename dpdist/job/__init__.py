"""The job, a release's settings as a YAML file states them, for all rooms: sections validated once, then frozen.

Public domains and bounds of columns are stated in the job. They are never inferred from the confidential file.
"""

from dpdist.job.budget import LedgerSettings, Limits, ReleaseBudget, epsilon_of, rho_of
from dpdist.job.data import Column, DesignEffect, ReplicateWeights, Simulate, TextFile
from dpdist.job.families import (
    FAMILIES,
    MODELS,
    SAMPLERS,
    Diagnostics,
    Family,
    Prior,
    Program,
    Runtime,
    Sampler,
)
from dpdist.job.mechanism import JobView, MechanismSpec, Noisy, OwnKey, declared, family_facts
from dpdist.job.presentation import FLAGS, Gate, Presentation, refuse_formats
from dpdist.job.reference import Fit, SimulatedReference
from dpdist.job.rules import Contradiction, broken
from dpdist.job.specs import SPECS, Calibration, Former, Mechanism, spec_of, those
from dpdist.job.tables import Hierarchy, Statistic, Table
from dpdist.job.values import (
    LEAST_BUDGET,
    TOO_LITTLE,
    Adjacency,
    Budget,
    Comparator,
    Frozen,
    Guarantee,
    Lonely,
    Measure,
    Name,
    NoiseName,
    SamplerName,
    StatisticName,
    Synthesis,
    Toolchain,
    budget_text,
)
from dpdist.job.weights import WEIGHT_RULES, RuleOrName, Weights
from dpdist.job.whole import Job

__all__ = [
    "FAMILIES",
    "FLAGS",
    "LEAST_BUDGET",
    "MODELS",
    "SAMPLERS",
    "SPECS",
    "TOO_LITTLE",
    "WEIGHT_RULES",
    "Adjacency",
    "Budget",
    "Calibration",
    "Column",
    "Comparator",
    "Contradiction",
    "DesignEffect",
    "Diagnostics",
    "Family",
    "Fit",
    "Former",
    "Frozen",
    "Gate",
    "Guarantee",
    "Hierarchy",
    "Job",
    "JobView",
    "LedgerSettings",
    "Limits",
    "Lonely",
    "Measure",
    "Mechanism",
    "MechanismSpec",
    "Name",
    "NoiseName",
    "Noisy",
    "OwnKey",
    "Presentation",
    "Prior",
    "Program",
    "ReleaseBudget",
    "ReplicateWeights",
    "RuleOrName",
    "Runtime",
    "Sampler",
    "SamplerName",
    "Simulate",
    "SimulatedReference",
    "Statistic",
    "StatisticName",
    "Synthesis",
    "Table",
    "TextFile",
    "Toolchain",
    "Weights",
    "broken",
    "budget_text",
    "declared",
    "epsilon_of",
    "family_facts",
    "refuse_formats",
    "rho_of",
    "spec_of",
    "those",
]
