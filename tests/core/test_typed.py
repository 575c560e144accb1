"""The wheel says that the package is typed (PEP 561)."""

import tomllib
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_wheel_takes_the_mark_of_a_typed_package():
    assert files("dpdist").joinpath("py.typed").is_file()
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert "dpdist" in wheel["packages"]
    assert not {"exclude", "include", "only-include"} & wheel.keys(), "a wheel that leaves files out may leave py.typed out"
    assert "py.typed" not in (ROOT / ".gitignore").read_text(encoding="utf-8")
