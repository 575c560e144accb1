"""MST and AIM of opendp[mbi] on the file of `marginals_nscg.py`: records once each, and copied by their weights.

Run in an environment of its own (pip install 'opendp[mbi]' pandas pyarrow). Each process makes one release, so that
memory is told apart:

    python marginals_opendp.py WORK {MST,AIM} {unweighted,copied} [REPLICATE]

Copied records: a weight is clipped to the public bound and stands for weight / 200 copies, rounded at random, at most
ten. The privacy unit is then ten rows.

Records are drawn independently from the fitted model, 20 times as many as the file has, so that drawing them adds little
error. AIM has ten rounds in place of its own 160, which did not end: a round compiles the projections of a new model
onto 175 tables. `synthesize` of its own accord rounds instead. With mbi 1.1.0 this makes columns that share a parent follow
each other: rows with one value of the parent are filled in the same order for each of them.
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

CAP, COPY, TIMES, ROUNDS = 2000, 200, 20, 10


def slack(loss):
    """In place of the next smaller number: nine rounds that share a loss otherwise miss its sum by rounding."""
    return loss * (1.0 - 1e-9)


def copies(held, weight):
    """Every record as often as its clipped weight says, rounded at random with a fixed seed."""
    wanted = np.minimum(weight, CAP) / COPY
    drawn = np.random.default_rng(1).random(len(held)) < wanted % 1
    return held.loc[held.index.repeat((np.floor(wanted) + drawn).astype(int))]


def told(estimator):
    """The estimator, with a line for each fit: what is measured last, and after how many seconds."""
    began = time.perf_counter()

    def fit(domain, losses, *, potentials=None):
        found = estimator(domain, losses, potentials=potentials)
        print(f"{time.perf_counter() - began:.0f} s: {len(losses)} tables, last {losses[-1].clique}", flush=True)
        return found

    return fit


def release(rows, keys, algorithm, most):
    """The fitted model of all columns under ε = 1, one record of the file (`most` rows) added or removed."""
    context = dp.Context.compositor(
        data=pl.from_pandas(rows.reset_index(drop=True)).lazy(),
        privacy_unit=dp.unit_of(contributions=most),
        privacy_loss=dp.loss_of(epsilon=1.0),
    )
    query = context.query(epsilon=1.0).select(*rows.columns)
    return query.contingency_table(keys=keys, algorithm=algorithm).release()


def main(work, label, way, replicate):
    dp.enable_features("contrib")
    mst.prior = aim.prior = slack
    held = pd.read_parquet(work / "coded.parquet")
    weight = held.pop("weight").to_numpy()
    keys = {name: list(range(int(held[name].max()) + 1)) for name in held.columns}
    rows, most = (held, 1) if way == "unweighted" else (copies(held, weight), CAP // COPY)
    fit = told(dp.mbi.mirror_descent)
    algorithm = dp.mbi.MST(estimator=fit) if label == "MST" else dp.mbi.AIM(estimator=fit, rounds=ROUNDS)
    began, wall = time.process_time(), time.perf_counter()
    table = release(rows, keys, algorithm, most)
    said = {
        "mechanism": f"opendp {label}, {way}",
        "seconds": time.process_time() - began,
        "wall": time.perf_counter() - wall,
    }
    made = table.synthesize(rows=TIMES * len(held), method="sample")
    said["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    said["tables"] = [list(each) for each in table.marginals.cliques()]
    path = work / f"opendp-{label}-{way}-{replicate}.parquet"
    made.write_parquet(path)
    path.with_suffix(".json").write_text(json.dumps(said))
    print(said, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4], replicate=int(sys.argv[4]) if len(sys.argv) > 4 else 0)
