"""Finds the files of Stan programs, and reads their text with all files that they include."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from dpdist.core.errors import ProgramError


def find_program(name: str | Path) -> Path:
    """The path of a program. A name without a folder may also name a shipped program."""
    path = Path(name)
    if path.is_file() and path.suffix == ".stan":
        return path.absolute()
    shipped = shipped_programs()
    if path.name == str(name) and path.name.removesuffix(".stan") in shipped:
        return shipped[path.name.removesuffix(".stan")]
    near = get_close_matches(path.stem, shipped, n=1)
    remedy = f"did you mean '{near[0]}'?" if near else "check the path; shipped: " + (", ".join(shipped) or "none")
    raise ProgramError(str(name), "no such Stan program (a file that ends with .stan)", remedy)


def shipped_programs() -> dict[str, Path]:
    """Programs shipped with dpdist, by name."""
    return {path.stem: path for path in sorted(shipped_folder().glob("*.stan"))}


def shipped_folder() -> Path:
    inside = Path(str(resources.files("dpdist") / "stan"))
    return inside if inside.is_dir() else Path(__file__).parents[2] / "stan"  # in a source checkout


def texts(source: Path) -> Iterator[str]:
    """Texts of a program, and of the files that it includes from its folder."""
    seen, queue = set[Path](), [source]
    while queue:
        path = queue.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            if path != source:  # stanc itself reports a wrong include
                continue
            found = f"{path.name} cannot be read ({type(error).__name__})"
            raise ProgramError(source.name, found, "give a UTF-8 text file") from None
        yield text
        included = [source.parent / name for name in re.findall(r'^\s*#include\s*[<"]?\s*([^\s>"]+)', text, re.MULTILINE)]
        if any(not each.resolve().is_relative_to(source.parent.resolve()) for each in included):
            raise ProgramError(source.name, "it includes a file of another folder", "put it beside the program")
        queue += included
