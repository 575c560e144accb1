"""Catalogue of cautions: code, stage, what it means and what to do, with named parameters, and an explanation.

Texts are in `cautions.txt`, as those of rules are in `rules.txt`.

A caution refuses nothing. Statements keep its text; `Caution.stated` finds the code of a text by the catalogue, also in
statements of earlier versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, cast

Stage = Literal["plan", "release"]
UNCATALOGUED = "from_mechanism"
"""Code of a caution whose text is not in the catalogue."""
LONGEST = 4_096
"""Longest text whose code is looked for: it may come from a folder that somebody else made."""


class CautionKind(NamedTuple):
    stage: Stage
    """Given before a run alone, or published with the release, too."""
    text: str
    """What it means: one or two sentences."""
    remedy: str = ""
    """What to do: a sentence."""
    explanation: str = ""
    """What it means and what to do, for a reader without a case at hand."""


def _catalogue() -> Iterator[tuple[str, CautionKind]]:
    """Yields the cautions of `cautions.txt`: a block each, with code and stage, the text, and other fields by name."""
    for block in Path(__file__).with_name("cautions.txt").read_text(encoding="utf-8").split("\n\n"):
        head, text, *fields = block.strip().splitlines()
        code, _, stage = head[1:-1].partition(": ")
        yield code, CautionKind(cast(Stage, stage), text, **dict(field.split(": ", 1) for field in fields))


KINDS: Mapping[str, CautionKind] = dict(_catalogue())
"""By code. Of two texts that match, the one with more words of its own names the code."""


@dataclass(frozen=True)
class Caution:
    code: str
    text: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.code not in KINDS:
            raise ValueError(f"no caution has the code '{self.code}'; codes are {', '.join(KINDS)}")

    @classmethod
    def of(cls, code: str, /, **facts: object) -> Caution:
        kind = KINDS.get(code, KINDS[UNCATALOGUED])
        return cls(code, kind.text.format(**facts), kind.remedy.format(**facts))

    @classmethod
    def stated(cls, text: str) -> Caution:
        """A caution by its text alone, as a statement has it; `UNCATALOGUED` if the catalogue has no such text."""
        if len(text) > LONGEST:
            return cls(UNCATALOGUED, text)
        return cls(next(code for code, form in _forms() if form.fullmatch(text)), text)

    @classmethod
    def coded(cls, code: str, text: str) -> Caution:
        """A caution of a statement by its code, which an earlier or later version may have left out or not know.

        It has the catalogue's remedy, which statements leave out if it is for custodians.
        """
        if code not in KINDS or code == UNCATALOGUED:
            return cls.stated(text)
        remedy = KINDS[code].remedy
        if "{" in remedy:  # its facts are not in the statement
            return cls(code, text)
        return cls(code, text.removesuffix(f" {remedy}"), remedy)

    @property
    def public(self) -> Caution:
        """The caution for readers of a release, without advice to its custodian."""
        return replace(self, remedy="")

    @property
    def stage(self) -> Stage:
        return KINDS[self.code].stage

    def __str__(self) -> str:
        return f"{self.text} {self.remedy}" if self.remedy else self.text


def described(cautions: Iterable[Caution]) -> dict[str, list[str]]:
    """Texts and codes as JSON values, in the same order; without cautions no codes."""
    listed = list(cautions)
    return {"cautions": [*map(str, listed)]} | ({"caution_codes": [caution.code for caution in listed]} if listed else {})


@cache
def _forms() -> list[tuple[str, re.Pattern[str]]]:
    """The pattern of every text, the most specific first."""
    forms = {code: re.split(r"\{\w+\}", kind.text) for code, kind in KINDS.items()}
    return [
        (code, re.compile("(?s:.*)".join(map(re.escape, forms[code])) + "(?s:.*)"))
        for code in sorted(forms, key=lambda code: -len("".join(forms[code])))
    ]
