"""Checks that an outcome has public levels: whole numbers between whole bounds, or texts with whole codes."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor

from dpdist.job.contradiction import Contradiction
from dpdist.job.data import Column


def levels_between(column: Column) -> int:
    """Number of whole numbers between the public bounds; 0 without bounds."""
    return int(column.bounds[1] - column.bounds[0]) + 1 if column.bounds is not None else 0


def against_levels(outcome: str, column: Column, who: str) -> Iterator[Contradiction]:
    """Reasons why an outcome has no distinct public levels. `who` names, in the message, what needs them."""
    path = ("columns", outcome)
    if column.codes is None and not column.whole:
        yield Contradiction((*path, "whole"), f"{who} has whole numbers, or coded levels", "add whole: true, or codes")
    if column.bounds is not None and not all(float(end).is_integer() for end in column.bounds):
        found = f"{who} has the whole numbers between the bounds, to which values beyond are set"
        yield Contradiction((*path, "bounds"), found, "write whole bounds")
    if wrong := [text for text, code in (column.codes or {}).items() if not float(code).is_integer()]:
        found = f"'{wrong[0]}' is coded {(column.codes or {})[wrong[0]]:g}, and {who} has whole levels"
        yield Contradiction((*path, "codes"), found, "code the texts 0, 1, 2, …")
    elif column.codes and (missing := _gaps(column)):
        found = f"no text is coded {missing[0]:g}, and {who} has a level at every whole number between the bounds"
        yield Contradiction((*path, "codes"), found, "code the texts 0, 1, 2, … without a gap, up to the bounds")


def _gaps(column: Column) -> list[float]:
    """Whole numbers between the bounds, or between the smallest and largest code, that are no text's code."""
    codes = set((column.codes or {}).values())
    low, high = column.bounds or (min(codes), max(codes))
    return [float(level) for level in range(ceil(low), floor(high) + 1) if level not in codes]
