"""dpdist's members pass the checks that authors of plug-ins run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pyreadstat
import pytest

from dpdist.job import SPECS, WEIGHT_RULES
from dpdist.job.statistics import KINDS
from dpdist.survey.source import READERS
from dpdist.testing import check_mechanism, check_reader, check_statistic, check_weight_rule

KEYS: dict[str, dict[str, Any]] = {
    "unweighted": {},
    "laplace_composed": {},
    "tables": {},
    "perturbed_histogram": {},
    "modips": {"mechanism": {"law": "bernoulli"}},
    "flat_laplace": {},
    "marginals": {},
}
"""Mechanisms whose jobs need no reference, with what else a job under them states."""


def _gzipped(table: pa.Table, path: Path) -> None:
    with pa.CompressedOutputStream(path, "gzip") as file:
        pyarrow.csv.write_csv(table, file)


WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    "": pq.write_table,
    "parquet": pq.write_table,
    "pq": pq.write_table,
    "csv": pyarrow.csv.write_csv,
    "gz": _gzipped,
    "dta": lambda table, path: pyreadstat.write_dta(table.to_pandas(), str(path)),
    "sav": lambda table, path: pyreadstat.write_sav(table.to_pandas(), str(path)),
    "zsav": lambda table, path: pyreadstat.write_sav(table.to_pandas(), str(path), compress=True),
    "xpt": lambda table, path: pyreadstat.write_xport(table.to_pandas(), str(path)),
}
"""By suffix, what writes such a file. No library here writes `.sas7bdat`, whose files in tests are of SAS."""


OFTEN = ("perturbed_histogram",)
"""The others are `long`: tests/mechanisms/test_contract_of_noise.py compares the same of each of their jobs."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.long]) for name in KEYS])
def test_a_mechanism_of_dpdist_passes_the_check(name: str) -> None:
    check_mechanism(SPECS[name], KEYS[name])


@pytest.mark.parametrize("rule", [name for name in WEIGHT_RULES if name != "none"])
def test_a_weight_rule_of_dpdist_passes_the_check(rule: str) -> None:
    check_weight_rule(rule)


STATISTICS: dict[str, Any] = {
    "count": "count",
    "mean": {"mean": "pay"},
    "total": {"total": "pay"},
    "ratio": {"ratio": ["pay", "hours"]},
    "proportion": {"proportion": "pay", "above": 10.0},
    "median": {"median": "pay"},
    "quantile": {"quantile": "pay", "at": 0.9},
    "share": {"share": ["sex"]},
}


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_of_dpdist_passes_the_check(name: str) -> None:
    assert KINDS.keys() - STATISTICS.keys() == {"difference"}, "which has no value in the cell that it is taken from"
    check_statistic(name, STATISTICS[name])


def test_weights_that_stay_at_1_are_no_rule_that_meets_a_target() -> None:
    """Control: of dpdist's rules, the check refuses the one that promises nothing."""
    with pytest.raises(AssertionError, match="ends with a bound over the target"):
        check_weight_rule("none")


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_reader_of_dpdist_passes_the_check(suffix: str) -> None:
    assert READERS.keys() - WRITERS.keys() == {"sas7bdat"}
    check_reader(suffix, WRITERS[suffix])


@pytest.mark.long
def test_a_mechanism_that_no_small_job_fits_is_told_what_to_state() -> None:
    """Control: with its law stated, it passes."""
    with pytest.raises(AssertionError, match=r"state its required settings in keys(.|\n)*mechanism\.law: missing key"):
        check_mechanism(SPECS["modips"])
