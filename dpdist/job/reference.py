"""Section `reference` of a job: a file, a simulated survey, an earlier release, or noisy histograms."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
)

from dpdist.job.data import Simulate, TextFile
from dpdist.job.values import Budget, Frozen, KeyText, Period

KEYS = ("encoding", "separator", "path", "simulate", "release", "key", "histogram", "period", "provenance")
"""The keys of all forms, in the order in which a job is written."""
UNWRITTEN = frozenset({"key"})
"""Keys that a written job leaves out if they are unset; other unset keys are null."""


class HistogramReference(Frozen):
    """Noisy histograms of the current file, which the release pays for.

    Alone, they replace a reference. Beside an earlier release, they update its shapes, in bins that follow from that
    release.
    """

    epsilon: Budget = Field(description="the part of budget.epsilon that is spent on the histograms")


class ReferenceForm(Frozen):
    """Keys and facts of all forms of a reference. Limits and shapes are taken from the reference."""

    holds_records: ClassVar[bool] = False
    """True for records that the job declares public; false for measurements of this or another release."""
    known_before: ClassVar[bool] = True
    period: Period | None = Field(default=None, description="period of the file; it must differ from the job's")
    provenance: str | None = Field(default=None, max_length=500, description="source, and why it is public")

    @property
    def is_redacted(self) -> bool:
        """True if no path is given, as in a published job."""
        return "path" in type(self).model_fields and self.file is None

    # Keys of other forms are unset.

    @property
    def file(self) -> str | None:
        return getattr(self, "path", None)

    @property
    def release_folder(self) -> str | None:
        """The folder of the earlier release, if it is the reference."""
        return getattr(self, "release", None)

    @property
    def signer(self) -> str | None:
        return getattr(self, "key", None)

    @property
    def histograms(self) -> HistogramReference | None:
        """The histograms of the current file, if the job has them; they take a part of the budget."""
        return getattr(self, "histogram", None)

    @property
    def location(self) -> str | None:
        return self.file or self.release_folder

    @property
    def text_format(self) -> TextFile:
        return TextFile()

    @property
    def left_out(self) -> frozenset[str]:
        return self.text_format.left_out

    @model_serializer(mode="wrap")
    def _with_all_keys(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Writes the keys of every form, with null for other forms' keys."""
        serialised, excluded = handler(self), info.exclude or ()
        null_keys = () if info.exclude_unset or info.exclude_none else frozenset(KEYS) - UNWRITTEN
        return {
            name: serialised.get(name)
            for name in KEYS
            if name in serialised or (name in null_keys and name not in excluded)
        }


class FileReference(TextFile, ReferenceForm):
    """Records that the job declares public: an earlier period's file, or another file with the same columns and design."""

    holds_records: ClassVar[bool] = True
    path: str | None = Field(
        default=None, description="a public file with the job's columns: Parquet, CSV, SAS, Stata or SPSS"
    )

    @property
    def text_format(self) -> TextFile:
        return self


class SimulatedReference(ReferenceForm):
    """A simulated survey as reference, for examples."""

    holds_records: ClassVar[bool] = True
    simulate: Simulate = Field(description="a simulated survey instead of a path, for examples")


class ReleaseReference(ReferenceForm):
    """An earlier release as reference. In dpdist 0.2, a job could update its distributions from
    histograms of the current file."""

    release: str = Field(description="public folder of an earlier release of tables, or of reference_tables in dpdist 0.2")
    key: KeyText | None = Field(
        default=None,
        exclude_if=lambda key: key is None,
        description=(
            "public key, or its file, with which that release's signature must verify; unset: signatures are not checked"
        ),
    )
    histogram: HistogramReference | None = Field(
        default=None, description="noisy histograms of the current file, paid from the budget"
    )


class HistogramsAlone(ReferenceForm):
    """Noisy histograms of the current file in place of a reference."""

    known_before: ClassVar[bool] = False
    histogram: HistogramReference = Field(description="noisy histograms of the current file, paid from the budget")


FORMS: dict[str, type[ReferenceForm]] = {
    "release": ReleaseReference,
    "histogram": HistogramsAlone,
    "simulate": SimulatedReference,
    "path": FileReference,
}
"""Forms by the key that identifies them. The first of several keys decides: a release of 0.2 may have a histogram."""


def form_of(value: Any) -> str:
    """The key that identifies the form of a mapping. A misspelt key counts as the nearest known one."""
    if isinstance(value, ReferenceForm):
        return next(name for name, form in FORMS.items() if isinstance(value, form))
    if not isinstance(value, dict):
        return "path"
    near = (name for key in value if key not in KEYS for name in get_close_matches(str(key), FORMS, n=1))
    return next((name for name in FORMS if name in value), next(near, "path"))


ONE_FORM = "give only one of path, simulate, release and histogram"


def _of_one_form(entry: Any) -> Any:
    """Removes keys that are null. Raises `ValueError` if keys of two forms are given."""
    if not isinstance(entry, dict):
        return entry
    entries = {name: value for name, value in entry.items() if value is not None}
    forms = [name for name in ("path", "simulate", "release", "histogram") if name in entries]
    if len(forms) > 1 and forms != ["release", "histogram"]:
        raise ValueError(f"{ONE_FORM}, not {' and '.join(forms)}")
    return entries


Reference: TypeAlias = Annotated[
    Annotated[FileReference, Tag("path")]
    | Annotated[SimulatedReference, Tag("simulate")]
    | Annotated[ReleaseReference, Tag("release")]
    | Annotated[HistogramsAlone, Tag("histogram")],
    Discriminator(form_of),
    BeforeValidator(_of_one_form),
]
"""A job's reference, in one of the forms."""


class Fit(Frozen):
    """Required fit of the family to the reference: limits on the share of table cells that fit (`goodness_of_fit`)."""

    warn_below: float = Field(default=0.8, ge=0, le=1, description="smallest share of fitting cells without a caution")
    refuse_below: float | None = Field(
        default=None, ge=0, le=1, description="smallest share of fitting cells without a refusal before the run"
    )
