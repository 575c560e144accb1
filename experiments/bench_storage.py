"""Writing the log-likelihood tensor, beside its codec alone and beside plain files of the same bytes."""

from __future__ import annotations

import numpy as np
from numcodecs.blosc import SHUFFLE, Blosc

from dpdist.storage import arrays
from dpdist.storage.arrays import RaggedAxis


def test_share_of_the_codecs_rate_and_of_the_disks(ratio, tmp_path):
    axis = RaggedAxis.of(np.array([8192]), 8192)
    template = arrays.Template(axis, ("a",), 1, 1000, ())
    arrays.create_log_lik(tmp_path / "t.zarr", template)
    rng = np.random.default_rng(1)
    tensor = -0.5 * rng.normal(size=(1000, 1)) ** 2 - 0.5 * rng.normal(size=8192) ** 2
    codec = Blosc(cname="lz4", clevel=1, shuffle=SHUFFLE)
    record = np.arange(8192)
    compressed = codec.encode(np.ascontiguousarray(tensor))

    def store():
        arrays.write_log_lik(tmp_path / "t.zarr", axis.region(0, 0, 8192), tensor, record)

    def encode_and_write():
        (tmp_path / "plain").write_bytes(codec.encode(tensor))

    print(f"\ntensor {tensor.nbytes / 2**20:.0f} MiB, compressed {len(compressed) / 2**20:.0f} MiB")
    ratio("share of the rate of codec and disk alone", store, encode_and_write)
