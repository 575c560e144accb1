"""Programs and what is said of them: declared data are the data that models hand over, info files name them all."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from cases import FAMILIES, PROPER, model_of, some_records

PROGRAMS = Path(__file__).parents[2] / "stan"
OURS = {**{family: (family, {}) for family in FAMILIES}, "lognormal": ("lognormal", {"prior": PROPER})}
OURS["population"] = ("lognormal", {"prior": PROPER, "synthesis": "fbp"})
SIZES = {"P", "K", "M"}
"""Sizes, which explain themselves."""
CLAMPED = {"N", "alpha", "reference", "clamp"}


def declared(text, block):
    """Names that a block of a program declares."""
    found = re.search(rf"^{block} {{\n(.*?)^}}", text, re.S | re.M)
    body = re.sub(r"//.*", "", found.group(1) if found else "")
    return set(
        re.findall(r"^  [a-z_]+(?:<.*?>)?(?:\[[^\]]*\])?(?: \w+(?:<.*?>)?(?:\[[^\]]*\])?)?\s+(\w+)(?: =.*)?;", body, re.M)
    )


def test_every_program_has_a_model_and_an_info_file():
    assert {path.stem for path in PROGRAMS.glob("*.stan")} == set(OURS)
    assert {path.stem for path in PROGRAMS.glob("*.yaml")} == set(OURS)


@pytest.mark.parametrize("program", OURS)
def test_a_model_hands_over_the_data_that_its_program_declares(program):
    family, said = OURS[program]
    model, records = model_of(family, **said), some_records(family)
    assert model.program == program
    names = declared((PROGRAMS / f"{program}.stan").read_text(), "data")
    ones = np.ones(len(records))
    plain = model.stan_data(model.statistics(records, ones))
    assert set(plain) == names
    clamped = model.stan_records(records, ones, ones, 1.0)
    assert set(clamped) <= names
    assert {name for name, values in plain.items() if values == []} | {"N", "clamp"} == set(clamped)
    assert (plain["N"], clamped["N"]) == (0, len(records))


@pytest.mark.parametrize("program", OURS)
def test_an_info_file_names_every_datum_and_parameters_of_the_program(program):
    text = (PROGRAMS / f"{program}.stan").read_text()
    info = yaml.safe_load((PROGRAMS / f"{program}.yaml").read_text(encoding="utf-8"))
    said = {name.strip() for key in info["data"] for name in key.split(",")}
    assert said | set(info["records"]) | CLAMPED | SIZES >= declared(text, "data")
    assert said | set(info["records"]) <= declared(text, "data")
    blocks = ("parameters", "transformed parameters", "generated quantities")
    known = set.union(*(declared(text, block) for block in blocks))
    assert {parameter["name"] for parameter in info["parameters"]} <= known
    assert info["title"]
    assert re.search(r"\[[GTV]\]|METHODS", info["source"])
