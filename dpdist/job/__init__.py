"""The job, a release's settings as a YAML file states them, for all rooms: sections validated once, then frozen.

Public domains and bounds of columns are stated in the job. They are never inferred from the confidential file.
"""

from dpdist.job.budget import LedgerSettings, Limits, ReleaseBudget, Window, epsilon_of, rho_of
from dpdist.job.calibration import Calibration
from dpdist.job.data import Column, Simulate, TextFile
from dpdist.job.design import DesignEffect, ReplicateWeights
from dpdist.job.families import SAMPLERS, Family
from dpdist.job.hierarchies import Hierarchy
from dpdist.job.mechanism import MechanismSpec
from dpdist.job.model import Model, Prior, Program
from dpdist.job.presentation import Gate
from dpdist.job.reference import Fit, Reference
from dpdist.job.runtime import Diagnostics, Runtime, Sampler
from dpdist.job.specs import SPECS, Mechanism, spec_of, those
from dpdist.job.tables import Statistic, Table
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
    "LEAST_BUDGET",
    "SAMPLERS",
    "SPECS",
    "TOO_LITTLE",
    "WEIGHT_RULES",
    "Adjacency",
    "Budget",
    "Calibration",
    "Column",
    "Comparator",
    "DesignEffect",
    "Diagnostics",
    "Family",
    "Fit",
    "Frozen",
    "Gate",
    "Guarantee",
    "Hierarchy",
    "Job",
    "LedgerSettings",
    "Limits",
    "Lonely",
    "Measure",
    "Mechanism",
    "MechanismSpec",
    "Model",
    "Name",
    "NoiseName",
    "Prior",
    "Program",
    "Reference",
    "ReleaseBudget",
    "ReplicateWeights",
    "RuleOrName",
    "Runtime",
    "Sampler",
    "SamplerName",
    "Simulate",
    "Statistic",
    "StatisticName",
    "Synthesis",
    "Table",
    "TextFile",
    "Toolchain",
    "Weights",
    "Window",
    "budget_text",
    "epsilon_of",
    "rho_of",
    "spec_of",
    "those",
]
