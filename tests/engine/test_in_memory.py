"""The driver of rounds in memory: one for all, and its keyed noise has the law that a mechanism asks for."""

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab
from dpdist.engine.protocol import (
    BlockRecorder,
    Choice,
    Columns,
    Measurement,
    Noise,
    Released,
    Rounds,
    StratumRecorder,
    noise_of,
    run_rounds,
)
from dpdist.job import Job, Weights
from dpdist.mechanisms.pseudo_posterior import tilted
from dpdist.mechanisms.pseudo_posterior.leave_one_out import weighting
from dpdist.models.lognormal.model import Lognormal
from dpdist.privacy.weights import search
from dpdist.sampling.samplers import IndependentSampler

pytestmark = pytest.mark.quick

SIZE = 40_000
N, DRAWS, TARGET, KEY, WEIGHTS = 120, 60, 2.0, Key(b"\x06" * 32), Weights(rule="fixed_point")
SAMPLER = IndependentSampler(DRAWS)
JOB = Job.model_validate(
    {
        "dataset": "a",
        "period": "now",
        "survey": {"weight": "w"},
        "outcome": "y",
        "columns": {"y": {"bounds": [0, 1e9]}},
        "mechanism": {"name": "weighted"},
        "model": {"family": "lognormal"},
        "budget": {"epsilon": "4"},
        "tables": [{"name": "all", "statistics": ["count"]}],
    }
)
MODEL = Lognormal.build(JOB, Crosstab({}, {}, np.array([N]), (), ()), slice(0, 1))
_rng = np.random.default_rng(3)
_rows = np.zeros(N, dtype=np.int32)
FILE = Records(np.arange(N), _rows, np.exp(_rng.normal(11, 0.4, N)), np.exp(_rng.normal(4, 0.4, N)), _rows - 1)
BLOCKS = [FILE.part(0, 70), FILE.part(70, N)]


class Bounds(BlockRecorder):
    """Keeps a block's by-products."""

    def bounds(self, columns: Confidential[Columns]) -> None:
        self.columns = columns.disclose_to_custodian()


def rounds() -> Rounds:
    return tilted.protect(MODEL, search(WEIGHTS, TARGET), TARGET, 1, StratumRecorder())


@pytest.mark.parametrize(("law", "variance", "kurtosis"), [("laplace", 2 * 8.0**2, 6.0), ("gaussian", 8.0**2, 3.0)])
def test_noise_has_the_law_of_its_request(law: str, variance: float, kurtosis: float) -> None:
    """Variance and kurtosis within six standard errors: false alarms below 1e-8. The other law is outside (control)."""
    drawn = noise_of(Key(b"\x05" * 32))(Noise(Fraction(8), SIZE, 1, law))  # type: ignore[arg-type]
    assert np.array_equal(drawn, np.rint(drawn))
    spread = drawn.var()
    fourth = ((drawn - drawn.mean()) ** 4).mean() / spread**2
    assert spread == pytest.approx(variance, rel=6 * np.sqrt((kurtosis - 1) / SIZE) + 0.01)
    assert abs(fourth - kurtosis) < 1.0
    assert abs(fourth - (9.0 - kurtosis)) > 2.0, "control"


@pytest.mark.parametrize(
    ("exact", "refused"),
    [([1.0, 2.5], True), ([1.0, np.nan], True), ([1.0, -(2.0**50)], False)],
    ids=["half", "nan", "whole"],
)
@pytest.mark.parametrize("query", [Measurement, Choice])
def test_figures_that_are_not_whole_are_not_answered(query: type, exact: list[float], refused: bool) -> None:
    """Noise is whole: the fraction of an answer would be the exact one's. Control: whole figures are answered."""

    def asks() -> Rounds:
        yield query(np.array([exact]), Noise(Fraction(8), 2, 1, "laplace"))
        return Released(())

    if refused:
        with pytest.raises(ValueError, match="round each record's share"):
            run_rounds(asks(), MODEL, SAMPLER, KEY, "here", BLOCKS)
    else:
        assert run_rounds(asks(), MODEL, SAMPLER, KEY, "here", BLOCKS) == Released(())


def test_by_products_change_nothing_and_are_handed_over_only_on_request() -> None:
    """The same rounds with and without recorders, over two blocks; who records gets every record of its block."""
    kept = [Bounds(), Bounds()]
    with_recorders, without = (run_rounds(rounds(), MODEL, SAMPLER, KEY, "here", BLOCKS, each) for each in (kept, None))
    for name, values in with_recorders.parameters[0].values.items():
        assert np.array_equal(values, without.parameters[0].values[name])
    assert [list(each.columns["record"]) for each in kept] == [list(block.record) for block in BLOCKS]


def test_an_audit_ends_at_the_weights_that_a_release_records() -> None:
    """One driver: α of `weighting` is what the release's rounds hand to the recorder, bit by bit."""
    kept = [Bounds(), Bounds()]
    run_rounds(rounds(), MODEL, SAMPLER, KEY, "here", BLOCKS[:1], kept[:1])
    alpha = weighting(MODEL, BLOCKS[0], search(WEIGHTS, TARGET), DRAWS, KEY, "here").alpha
    assert (alpha < 1).any()
    assert np.array_equal(alpha, kept[0].columns["privacy_weight"])


def test_requests_are_answered_in_one_place() -> None:
    """`drive` alone answers a mechanism's requests; where a pass is not in memory, a caller gives it a `visit`."""
    package = Path(dpdist.__file__).parent
    asked = re.compile(r"isinstance\(\w+, (Pass|Sample)\)")
    places = {
        path.relative_to(package).as_posix() for path in package.rglob("*.py") if asked.search(path.read_text("utf-8"))
    }
    assert places == {"engine/protocol.py"}
