"""Lists the `spec.py` of every mechanism, which `mechanism: {name: …}` selects; and the mechanisms of dpdist 0.2.

A specification is the file `spec.py` of the mechanism's folder. It is imported where a job names the mechanism. The section
`calibration` has constants of a mechanism that `dpdist calibrate` tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, get_args

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dpdist.core.cautions import Caution
from dpdist.core.errors import JobError
from dpdist.core.plugins import MECHANISMS, REFUSED, Members, PluginRefused
from dpdist.job.budget import FRAME_MINIMUM, PrivacyUnit, ReleaseBudget
from dpdist.job.data import Column, Keep, Survey
from dpdist.job.families import Model, Outcome
from dpdist.job.mechanism import JobView, MechanismSpec, Noisy, OwnKey
from dpdist.job.values import Frozen, Guarantee, Measure, Name, Period
from dpdist.job.yaml_lines import Keys, Lines, as_yaml, keys_of, place

# A job file may use three of the names for one more version: it then runs as `tables`. Jobs of earlier releases keep their
# mechanism as they state it, so that their folders are opened and verified.
PRESENT = "tables"
ALIASES = ("table_package", "reference_tables", "laplace_strict")
"""Former names that a job file may use."""
REMOVED = "weight_regularisation"
NAMES = (*ALIASES, REMOVED)
STATISTICS = ("reference_cells", "package", "cell_sums", "regularised_cells")
"""Names of their statistics, which earliest jobs state as `model.family`."""
NO_MORE = "'{}' was removed in dpdist 0.3"
DROPPED = {
    ("mechanism", "strategy"): "everything that is published is measured",
    ("mechanism", "shrinkage"): "the posterior shrinks estimates as far as the noise requires",
    ("reference", "histogram"): "drift since an earlier release is measured by the tables themselves",
}
"""Keys that the former mechanisms had, and why `tables` has none; `reference.histogram` beside `reference.release`."""
WITHOUT = "; {key} has no effect, for {why}"
AGAIN = "install dpdist 0.2, which publishes it: pip install 'dpdist>=0.2,<0.3'"
"""Remedy for a release of such a mechanism that is to be published again."""


class Former(Noisy):
    """A mechanism of dpdist 0.2 in the job of an earlier release, with all of its settings; nothing runs under it."""

    model_config = ConfigDict(extra="allow")

    tabulates: ClassVar[bool] = True
    statistics: ClassVar[str | None] = "sums of cells"
    several_outcomes: ClassVar[bool] = True
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset({"accept"})

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    @staticmethod
    def first_of(name: str) -> tuple[int, ...]:
        """The first version that had the mechanism."""
        return (0, 2) if name == "table_package" else (0, 1)

    @property
    def gaussian(self) -> bool:
        return bool((self.model_extra or {}).get("noise") == "gaussian")

    def biased(self, on_records: bool) -> bool:
        """True if means can be far off at every ε: of packages, and of tables whose reference is no file of records."""
        return self.name == "table_package" or (self.name == "reference_tables" and not on_records)


def in_present_form(keys: Keys, lines: Lines, source: str) -> tuple[Keys, Caution | None]:
    """A job's keys with the present name of its mechanism, and a caution on a former one.

    Raises `JobError` for a mechanism that is no more.
    """
    name = keys_of(keys.get("mechanism")).get("name")
    if name == REMOVED:
        origin = place(("mechanism", "name"), lines)
        allowed, remedy = f"{PRESENT}, or another mechanism", f"use {PRESENT}"
        raise JobError.of(source, "mechanism.name", NO_MORE.format(REMOVED), allowed, remedy, origin)
    if name not in ALIASES:
        return keys, None
    present: dict[str, Any] = keys | {"mechanism": {**keys["mechanism"], "name": PRESENT}}
    dropped = ""
    public = keys_of(present.get("budget")).get("adjacency") != "add_remove"
    if name != "table_package" and public and not {"frame_minimum", "public_frame"}.intersection(present):
        # These refused small counts that a package of tables published.
        present["frame_minimum"] = FRAME_MINIMUM
    for (section, key), why in DROPPED.items():
        settings = keys_of(present.get(section))
        if key in settings and (section != "reference" or "release" in settings):
            present[section] = {other: value for other, value in settings.items() if other != key}
            dropped += WITHOUT.format(key=f"{section}.{key}", why=why)
    return present, Caution.of("former_mechanism", former=name, present=PRESENT, dropped=dropped)


STORED = "stored"
"""Context of validation of a job that an earlier run stored: it may name a mechanism of an earlier version."""
PLACES = {
    "weighted": "dpdist.mechanisms.pseudo_posterior.spec:Weighted",
    "unweighted": "dpdist.mechanisms.pseudo_posterior.spec:Unweighted",
    "weighted_e": "dpdist.mechanisms.pseudo_posterior.spec:WeightedE",
    "censor_w": "dpdist.mechanisms.pseudo_posterior.spec:CensorW",
    "censor_uw": "dpdist.mechanisms.pseudo_posterior.spec:CensorUW",
    "centred": "dpdist.mechanisms.pseudo_posterior.spec:Centred",
    "perturbed_histogram": "dpdist.mechanisms.perturbed_histogram.spec:PerturbedHistogram",
    "laplace": "dpdist.mechanisms.laplace_tables.spec:Laplace",
    "laplace_composed": "dpdist.mechanisms.laplace_tables.spec:LaplaceComposed",
    "tables": "dpdist.mechanisms.tables.spec:Tables",
    "sanitized_statistics": "dpdist.mechanisms.sanitized_lognormal.spec:SanitizedStatistics",
    "modips": "dpdist.mechanisms.modips.spec:Modips",
    "flat_laplace": "dpdist.mechanisms.partitions.spec:FlatLaplace",
    "universal_histogram": "dpdist.mechanisms.partitions.spec:UniversalHistogram",
    "steps": "dpdist.mechanisms.partitions.spec:Steps",
    "marginals": "dpdist.mechanisms.marginals.spec:CodedMarginals",
}
"""Places of dpdist's specifications by mechanism; a plug-in's place is its entry point."""
FORMER = {"weighted_marginals": "marginals", "privbayes": "marginals"}
"""Names of earlier versions, in stored jobs too, and the mechanism that reads their sections: `of_former` of its class."""
FORMER_FACTS = {
    **dict.fromkeys(("weighs", "tunes_weights", "cuts_weights"), "weighting"),
    **dict.fromkeys(("whole_tables", "sets_are_free", "donates"), "sets"),
    **dict.fromkeys(("takes_reference", "states_totals", "plans_tables", "public_weights", "gates"), "own_keys"),
    **dict.fromkeys(("sizes_by_sums", "sums_weights_of_zero"), "sums_weights"),
    "own_histograms": "histogram_share",
}
"""Facts that specifications stated in earlier versions, where they would now have no effect, and what states them now."""


def _fault(name: str, member: Any) -> str:
    if not (isinstance(member, type) and issubclass(member, MechanismSpec)):
        return "is not a class derived from MechanismSpec"
    if get_args(member.model_fields["name"].annotation) != (name,):
        return f"has a different name in its class: write name: Literal['{name}']"
    if former := next((fact for fact in FORMER_FACTS if hasattr(member, fact)), None):
        return f"states {former}, a fact of an earlier version: write {FORMER_FACTS[former]} (dpdist.job.mechanism)"
    if member.package.startswith("dpdist.") and name not in PLACES:
        return f"runs code of {member.package}: write package, the one with its own code"
    return ""


SPECS: Members[type[MechanismSpec]] = Members(MECHANISMS, PLACES, _fault)
"""Specifications by the name of the mechanism."""


class _ByName:
    """Makes a field of the union of all specifications, which the key `name` distinguishes.

    The specification named by the value validates it; no other specification is imported.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(_validate, serialization=core_schema.simple_ser_schema("any"))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(_union(*SPECS.with_plugins().values()).core_schema)


Mechanism = Annotated[MechanismSpec, _ByName()]
"""The mechanism of a job: one of dpdist's specifications, or a plug-in's."""


def _validate(value: Any, info: ValidationInfo) -> MechanismSpec:
    if isinstance(value, Mapping) and (former := value.get("name")) in FORMER:
        value = SPECS[FORMER[former]].of_former(value)
    name = value.name if isinstance(value, MechanismSpec) else value.get("name") if isinstance(value, Mapping) else None
    if name in NAMES and info.context == STORED:
        return Former.model_validate(value)
    try:
        specs = [SPECS.named(name)] if isinstance(name, str) else [*SPECS.with_plugins().values()]
    except PluginRefused as refusal:
        raise PydanticCustomError(REFUSED, "{reason}", {"kind": "mechanism", "reason": str(refusal)}) from None
    except KeyError:
        specs = [*SPECS.with_plugins().values()]
    spec = _union(*specs).validate_python(value)
    if spec.name != name or (name not in SPECS and type(spec) is not SPECS.named(name)):
        reason = f"plug-in {SPECS.plugged_in(str(name))[0]} makes a section of another mechanism: remove validators"
        raise PydanticCustomError(REFUSED, "{reason}", {"kind": "mechanism", "reason": reason})
    return spec


@dataclass(frozen=True)
class _Union:
    specs: tuple[type[MechanismSpec], ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        names = [get_args(spec.model_fields["name"].annotation)[0] for spec in self.specs]
        schemas = map(handler.generate_schema, self.specs)
        return core_schema.tagged_union_schema(dict(zip(names, schemas, strict=True)), discriminator="name")


@cache
def _union(*specs: type[MechanismSpec]) -> TypeAdapter[MechanismSpec]:
    return TypeAdapter(Annotated[Any, _Union(specs)])


def spec_of(settings: Mapping[str, Any]) -> type[MechanismSpec] | None:
    """The specification of the mechanism in a job's settings, by dotted key; None if the mechanism is unknown."""
    name = settings.get("mechanism.name", "")
    try:
        return SPECS.named(FORMER.get(name, name))
    except KeyError:
        return None


def those(fact: Callable[[type[MechanismSpec]], object]) -> tuple[str, ...]:
    return tuple(name for name, spec in SPECS.items() if fact(spec))


FIRST_LINE = (
    "# Tuned on a reference period by `dpdist calibrate`; later jobs name it under calibration: {path: …}, unchanged.\n"
)

CALIBRATION_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "a file that `dpdist calibrate` wrote"}},
}


class Calibration(Frozen):
    """Constants that `dpdist calibrate` tuned on an earlier period, for later periods of the same job."""

    dataset: Name
    period: Period = Field(description="period of the reference on which the constants were tuned")
    columns: dict[str, Column]
    universe: tuple[Keep, ...]
    survey: Survey
    strata: tuple[str, ...]
    outcome: Outcome
    model: Model | None
    mechanism: Mechanism
    budget: ReleaseBudget
    synthetic_sets: int
    privacy_unit: PrivacyUnit | None = Field(default=None, exclude_if=lambda unit: unit is None)
    referring: bool = Field(description="whether weights are fixed on a reference")
    bound: float = Field(description="M of a clamp, or Δ* of a set")
    measure: Measure
    loss: float
    tried: int
    reference: dict[str, str | int | None] = Field(
        description="checksums, records and provenance of the reference on which constants were tuned"
    )
    sha256: str = Field(default="", description="checksum of the file, as found by the job that names it")

    @property
    def text(self) -> str:
        """The file's text, as `load_calibration` reads it."""
        return FIRST_LINE + as_yaml(self.model_dump(mode="json", exclude={"sha256"}))

    @property
    def public(self) -> dict[str, Any]:
        """The published part of a calibration. It lacks the mechanism, which the statement takes from the job."""
        return self.model_dump(mode="json", include={"period", "measure", "loss", "tried", "reference", "sha256"})
