"""Cautions on a terminal: the texts that fit into a few lines, and the codes of all others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import wrap

from dpdist.core.cautions import KINDS, UNCATALOGUED, Caution

MOST_LINES = 5
"""Largest number of lines that the cautions of one occasion take on a terminal."""
IN_FULL = ("small_counts",)
"""Codes of cautions whose remedy is always shown: under most mechanisms a run refuses such a job."""
FROM_MECHANISM = ("assumed_distribution", "loss_above_epsilon", UNCATALOGUED)
"""Codes of cautions that every release of a mechanism has."""
LINES_OF_CODES = 2
"""Largest number of these lines that name codes in place of texts."""


def caution_lines(cautions: Sequence[Caution], width: int) -> list[str]:
    """One text for each caution that fits into `MOST_LINES` lines of `width` characters, and one that names the others.

    A caution without room for its remedy is stated without it, and one without room for its text by its first sentence.
    Those of this job come before those of its mechanism. Those of `IN_FULL` come first, and take none of the lines.
    """
    cautions = sorted(cautions, key=lambda caution: (caution.code not in IN_FULL, caution.code in FROM_MECHANISM))
    texts, codes, room = list[str](), list[str](), MOST_LINES
    for number, caution in enumerate(cautions, start=1):
        last = number == len(cautions) and not codes
        free = room if last else room - LINES_OF_CODES
        first_sentence = re.split(r"(?<=\.) ", caution.text, maxsplit=1)[0]
        forms = [f"{text} [{caution.code}]" for text in (str(caution), caution.text, first_sentence)]
        if caution.code in IN_FULL:
            texts.append(forms[0])
            continue
        text = next((form for form in forms if len(wrap(form, width)) <= free), None)
        if text is None:
            codes.append(_with_place(caution))
        else:
            texts.append(text)
            room -= len(wrap(text, width))
    return [*texts, _by_code(codes, "more " if texts else "", width)] if codes else texts


def _with_place(caution: Caution) -> str:
    """The code, with the table and statistic that the text begins with, if it does."""
    place, _, rest = caution.text.partition(": ")
    return f"{caution.code} ({place})" if rest and KINDS[caution.code].text.startswith("{table}") else caution.code


def _by_code(codes: Sequence[str], more: str, width: int) -> str:
    names = list(dict.fromkeys(codes))
    head = f"{len(codes)} {more}caution{'s'[: len(codes) != 1]} (see `dpdist explain CODE`): "
    tails = (", ".join(names[:number]) + ", …" * (number < len(names)) for number in range(len(names), 0, -1))
    return next((head + tail for tail in tails if len(wrap(head + tail, width)) <= LINES_OF_CODES), head.rpartition(":")[0])
