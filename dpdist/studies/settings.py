"""Settings that all kinds of study share, such as seed and replicates. They are validated once and then frozen."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from dpdist.core.keys import Key
from dpdist.job import Budget, Frozen, Name, Runtime, budget_text
from dpdist.studies.shown import Beside, Figure, Limit, Note


def _text(value: Any) -> Any:
    return " ".join(value.split()) if isinstance(value, str) else value


class Study(Frozen):
    """Settings that studies of every kind have; each kind adds further ones."""

    kind: str
    study: Name
    title: str
    about: Annotated[str, BeforeValidator(_text)] = ""
    seed: int = Field(ge=0, lt=2**64)
    replicates: int = Field(ge=1)
    epsilons: tuple[Budget, ...] = ()
    references: dict[str, str] = Field(default_factory=dict, description="papers that the texts cite, by their letter")
    cases: tuple[Any, ...] = Field(min_length=1)
    notes: tuple[Note, ...] = ()
    limits: tuple[Limit, ...] = Field(default=(), description="what the page holds the results against")
    beside: tuple[Beside, ...] = ()
    figures: tuple[Figure, ...] = ()
    runtime: Runtime = Runtime()

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of the column `mechanism` in the results, in order."""
        raise NotImplementedError

    @property
    def case_names(self) -> tuple[str, ...]:
        return tuple(case.name for case in self.cases)

    @property
    def asked(self) -> tuple[str, ...]:
        """Measures that the study computes, in order."""
        raise NotImplementedError

    @property
    def grid(self) -> tuple[str, ...]:
        """Values of ε as exact text; one empty text for a study without ε."""
        return tuple(budget_text(epsilon) for epsilon in self.epsilons) or ("",)

    @property
    def same_at_every_epsilon(self) -> tuple[str, ...]:
        """Labels of results that do not depend on ε. A page shows them under each ε, but counts them once."""
        return ()

    def key_of(self, case: str, number: int | None = None) -> Key:
        """Key of the random numbers of a case, or of its replicate `number`."""
        key = Key(self.seed.to_bytes(32, "big")).child(case)
        return key if number is None else key.child(str(number))

    def replicates_of(self, case: int) -> int:
        """Number of replicates of the case at this position."""
        return self.replicates

    def with_data(self, folder: str) -> Self:
        """The study with another folder of files. A study that reads no files stays as it is."""
        return self

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Settings that determine a replicate. Results may be combined only if their studies agree in these."""
        return self.model_dump(mode="json", exclude=_DECIDES_NOTHING)

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        _different("labels of mechanisms", self.labels)
        _different("names of cases", self.case_names)
        for figure in self.figures:
            known_or_refused(f"figure '{figure.title}'", figure.cases, self.case_names)
            known_or_refused(f"figure '{figure.title}'", figure.mechanisms, self.labels)
            known_or_refused(f"figure '{figure.title}'", figure.epsilons, self.grid)
            known_or_refused(f"figure '{figure.title}'", (figure.measure,) if figure.measure else (), self.asked)
        for limit in self.limits:
            arms = (*(limit.mechanisms or ()), *((limit.below,) if limit.below else ()))
            for names, known in (
                (limit.cases, self.case_names),
                (arms, self.labels),
                (limit.measures, self.asked),
                (limit.epsilons, self.grid),
            ):
                known_or_refused(f"limit '{limit.title}'", names, known)
        for table in self.beside:
            known_or_refused(f"table '{table.title}'", (table.case,) if table.case else (), self.case_names)
            known_or_refused(f"table '{table.title}'", (table.measure,), self.asked)
            for row in table.rows:
                known_or_refused(f"table '{table.title}'", (row.mechanism,), self.labels)
                known_or_refused(f"table '{table.title}'", tuple(row.values), tuple(table.columns))
        return self


class StudyOfArms(Study):
    """Settings of a study that compares labelled mechanisms (arms) at every ε, by a fixed list of measures."""

    mechanisms: tuple[Any, ...] = Field(min_length=1)
    epsilons: tuple[Budget, ...] = Field(min_length=1)
    measures: ClassVar[tuple[str, ...]]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(arm.label for arm in self.mechanisms)

    @property
    def asked(self) -> tuple[str, ...]:
        return self.measures


_DECIDES_NOTHING = {"title", "about", "data", "references", "replicates", "notes", "beside", "figures", "limits", "runtime"}


def _different(what: str, names: tuple[str, ...]) -> None:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{what} must differ, '{twice}' stands twice or is reserved: give another")


def known_or_refused(where: str, names: Sequence[str] | None, known: Sequence[str]) -> None:
    """Raises `ValueError` for the first unknown name, with the nearest known name."""
    for name in names or ():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f": did you mean '{near[0]}'?" if near else ""
            raise ValueError(f"{where} names '{name}', which is none of {', '.join(known)}{hint}")
