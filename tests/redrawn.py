"""Tables of a finished release under other noise: same files, limits and mechanism, NumPy's Laplace noise at its scales."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from dpdist.core.keys import Key
from dpdist.core.records import TOTAL, Floats
from dpdist.engine.protocol import Noise
from dpdist.engine.rounds import run_rounds
from dpdist.runtime.fit_address import Fit, open_fit
from dpdist.storage.workspace import Workspace

CELL = ["field", "sex"]


class Unheard:
    """A recorder that keeps nothing; of the only stratum."""

    stratum, wants_log_lik = 0, False

    def bounds(self, columns: object) -> None: ...

    def summary(self, values: object) -> None: ...


def _tables(fit: Fit, draws: int, scale: float) -> Iterator[pd.DataFrame]:
    """Sums of weights and of weighted outcomes by cell and margin, of every draw."""
    model, rng = fit.fitted(0), np.random.default_rng(0)
    blocks = fit.records(fit.layout.blocks.of_stratum(0))

    def noise(request: Noise) -> Floats:
        return np.rint(scale * rng.laplace(0.0, float(request.scale), request.size))

    recorders = [Unheard() for _ in blocks]
    for _ in range(draws):
        rounds = fit.rounds(model, Unheard())
        theta = run_rounds(rounds, model, fit.sampler, fit.key, "all", blocks, recorders, noise).parameters[0]
        weight, product = (fit.frame.count * values[0] for values in model.expect(theta))
        found = pd.DataFrame({name: np.array(fit.frame.levels[name])[fit.frame.codes[name]] for name in CELL})
        found = found.assign(weight=weight, product=product)
        margins = [found, found.assign(field=TOTAL), found.assign(sex=TOTAL), found.assign(field=TOTAL, sex=TOTAL)]
        yield pd.concat(margins).groupby(CELL)[["weight", "product"]].sum()


def redrawn(workspace: Path, table: str, draws: int, scale: float = 1.0) -> pd.DataFrame:
    """|error| / direct standard error of counts and means of an unstratified release by field and sex: a row of (statistic,
    draw), a column of cells and margins. `scale`: of the noise, over that in force."""
    space = Workspace.of_place(workspace)
    fit = open_fit(space, Key.read(space.key), "strata")
    direct = pd.read_parquet(workspace / "confidential" / "evaluation" / f"{table}.parquet").set_index(CELL)
    rows = {}
    for number, sums in enumerate(_tables(fit, draws, scale)):
        for name, values in (("count", sums["weight"]), ("mean", sums["product"] / sums["weight"])):
            own = direct[direct["statistic"] == name]
            rows[name, number] = (values - own["direct"]).abs() / own["direct_se"]
    return pd.DataFrame(rows).T.rename_axis(["statistic", "draw"])
