"""MST and AIM of opendp[mbi] on the file of `marginals_nscg.py`: records once each, and copied by their weights.

Run in an environment of its own (pip install 'opendp[mbi]' pandas pyarrow): python marginals_opendp.py WORK

Copied records: a weight is clipped to the public bound and stands for weight / 200 copies, rounded at random, at most
ten. The privacy unit is then ten rows.
"""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import opendp.extras.mbi._aim as aim
import opendp.extras.mbi._mst as mst
import opendp.prelude as dp
import pandas as pd
import polars as pl

CAP, COPY = 2000, 200


def slack(loss):
    """In place of the next smaller number: nine rounds that share a loss otherwise miss its sum by rounding."""
    return loss * (1.0 - 1e-9)


def main(work):
    dp.enable_features("contrib")
    mst.prior = aim.prior = slack
    held = pd.read_parquet(work / "coded.parquet")
    weight = held.pop("weight").to_numpy()
    copies = np.minimum(weight, CAP) / COPY
    rng = np.random.default_rng(1)
    copied = held.loc[held.index.repeat((np.floor(copies) + (rng.random(len(held)) < copies % 1)).astype(int))]
    keys = {name: list(range(int(held[name].max()) + 1)) for name in held.columns}
    for replicate in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
        for name, rows, most in (("unweighted", held, 1), ("copied", copied, CAP // COPY)):
            for label, algorithm in (("MST", dp.mbi.MST()), ("AIM", dp.mbi.AIM())):
                began = time.perf_counter()
                context = dp.Context.compositor(
                    data=pl.from_pandas(rows.reset_index(drop=True)).lazy(),
                    privacy_unit=dp.unit_of(contributions=most),
                    privacy_loss=dp.loss_of(epsilon=1.0),
                )
                query = context.query(epsilon=1.0).select(*held.columns)
                table = query.contingency_table(keys=keys, algorithm=algorithm).release()
                made = table.synthesize(rows=len(held)).to_pandas()
                told = {"mechanism": f"opendp {label}, {name}", "seconds": time.perf_counter() - began}
                told["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
                path = work / f"opendp-{label}-{name}-{replicate}.parquet"
                made.to_parquet(path)
                path.with_suffix(".json").write_text(json.dumps(told))
                print(told, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
