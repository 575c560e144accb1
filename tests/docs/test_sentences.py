"""README and pages are for people who read them once: short sentences, a short README, links that lead on.

`PYTHONPATH=tests python tests/docs/test_sentences.py` prints the sentences of every page: how many, mean, longest.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

import pytest
from pages import FENCE, ROOT, WRITTEN, cells, name_of, pages, sentences, words

MEAN, LONGEST, LINES = 18, 35, 150
COUNTED = [page for page in pages() if page.name not in WRITTEN]


def long(found: list[str]) -> list[str]:
    return [sentence for sentence in found if len(words(sentence)) > LONGEST]


@pytest.mark.parametrize("page", COUNTED, ids=name_of)
def test_sentences_are_short(page: Path) -> None:
    """At most 18 words in the mean and 35 in any, in tables too."""
    text = page.read_text(encoding="utf-8")
    found = sentences(text)
    assert long([*found, *cells(text)]) == []
    if found:
        assert mean(len(words(sentence)) for sentence in found) <= MEAN


def test_a_long_sentence_is_found() -> None:
    """Control: in prose, in an item and in a table; code and headings do not count."""
    drawn = "word " * 36 + "end."
    assert [len(words(each)) for each in sentences(f"Short. {drawn.capitalize()}\n\n- {drawn}")] == [1, 37, 37][1:]
    assert len(long(cells(f"| {drawn} | x y |"))) == 1
    assert sentences(f"# {drawn}\n```\n{drawn}\n```\n") == []
    assert [len(words(each)) for each in sentences("It costs ε. `x` is a name. Δ is not.")] == [3, 4, 3]


def test_the_readme_fits_its_length() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= LINES


def test_links_of_the_readme_lead_to_files() -> None:
    """Links between pages are Sphinx's to check; it does not see README. Control: README has links."""
    text = FENCE.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


if __name__ == "__main__":
    for page in COUNTED:
        lengths = [len(words(sentence)) for sentence in sentences(page.read_text(encoding="utf-8"))] or [0]
        print(f"{name_of(page)}: {len(lengths)} sentences, mean {mean(lengths):.1f}, longest {max(lengths)}")
