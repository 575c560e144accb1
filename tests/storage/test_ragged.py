"""The ragged record axis and its stores: a chunk has one writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, strategies as st

from dpdist.models.protocol import Draws, Parameter
from dpdist.storage import arrays
from dpdist.storage.arrays import RaggedAxis

lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=30).map(lambda values: np.array(values, dtype=np.int64))
largest = st.sampled_from([128, 1024, 8192])


@given(lengths, largest)
def test_no_two_strata_share_a_chunk(length, largest):
    axis = RaggedAxis.of(length, largest)
    chunks = [
        set(range(int(start) // axis.chunk, (int(start) + int(n) - 1) // axis.chunk + 1))
        for start, n in zip(axis.offset, axis.length, strict=True)
    ]
    assert sum(map(len, chunks)) == len(set().union(*chunks)) == axis.size // axis.chunk
    assert 128 <= axis.chunk <= largest


@given(lengths, largest, st.data())
def test_a_region_that_shares_a_chunk_with_another_writer_is_refused(length, largest, data):
    axis = RaggedAxis.of(length, largest)
    stratum = data.draw(st.integers(0, len(length) - 1))
    n = int(length[stratum])
    assert axis.region(stratum, 0, n) == slice(int(axis.offset[stratum]), int(axis.offset[stratum]) + n)
    inside = data.draw(st.integers(1, n))
    if inside % axis.chunk and inside != n:
        with pytest.raises(AssertionError, match="share a chunk"):
            axis.region(stratum, 0, inside)
        with pytest.raises(AssertionError, match="share a chunk"):
            axis.region(stratum, inside, n)
    with pytest.raises(AssertionError, match="not the stratum's"):
        axis.region(stratum, 0, n + 1)


def template() -> arrays.Template:
    axis = RaggedAxis.of(np.array([130, 5, 300]), 128)
    return arrays.Template(axis, ("a", "b", "c"), 1, 4, (Parameter("scale"),))


def test_what_is_written_is_read_back_and_padding_is_nan(tmp_path: Path):
    said = template()
    arrays.create_log_lik(tmp_path / "t.zarr", said)
    rng = np.random.default_rng(1)
    values = [rng.normal(size=(4, n)) for n in said.axis.length]
    for k, tensor in enumerate(values):
        region = said.axis.region(k, 0, tensor.shape[1])
        arrays.write_log_lik(tmp_path / "t.zarr", region, tensor, np.arange(tensor.shape[1]) + 1000 * k)
    store = xr.open_zarr(tmp_path / "t.zarr", consolidated=False).load()
    assert store["log_lik"].shape == (1, 4, 128 * (2 + 1 + 3))
    for k, tensor in enumerate(values):
        start = int(store["offset"][k])
        np.testing.assert_array_equal(store["log_lik"].to_numpy()[0, :, start : start + tensor.shape[1]], tensor)
        assert store["record"].to_numpy()[start] == 1000 * k
    padding = store["record"] == -1
    assert int(padding.sum()) == said.axis.size - int(said.axis.length.sum())
    assert np.isnan(store["log_lik"].to_numpy()[..., padding]).all()


def test_every_chunk_file_of_a_stratum_is_known_to_its_mark(tmp_path: Path):
    said = template()
    arrays.create_log_lik(tmp_path / "t.zarr", said)
    before = set((tmp_path / "t.zarr").rglob("*"))
    arrays.write_log_lik(tmp_path / "t.zarr", said.axis.region(0, 0, 130), np.ones((4, 130)), np.arange(130))
    written = {path for path in set((tmp_path / "t.zarr").rglob("*")) - before if path.is_file()}
    assert written == set(arrays.chunk_files(tmp_path / "t.zarr", said.axis.chunk, said.axis.region(0, 0, 130)))


def test_stores_hold_no_fixed_width_strings_and_no_consolidated_metadata(tmp_path: Path):
    arrays.create_posterior(tmp_path / "p.zarr", template())
    texts = [path.read_text() for path in (tmp_path / "p.zarr").rglob("zarr.json")]
    assert not any("fixed_length" in text or "consolidated" in text for text in texts)
    posterior = xr.open_zarr(tmp_path / "p.zarr", group="posterior", consolidated=False)
    assert list(posterior["stratum"].to_numpy()) == ["a", "b", "c"]


def test_arviz_reads_the_final_fit_as_the_posterior(tmp_path: Path):
    """`az.from_zarr` of ArviZ before 1.0 refuses Zarr 3 and names this way in its place."""
    import arviz as az  # takes long, for few tests

    said, path = template(), tmp_path / "p.zarr"
    arrays.create_posterior(path, said)
    for number, fit in enumerate(("unweighted", "weighting", "final")):
        values = {each.name: np.full((4, *each.shape), float(number)) for each in said.parameters}
        arrays.write_draws(path, fit, 1, [Draws(values)])
    read = az.InferenceData.from_datatree(xr.open_datatree(path, engine="zarr", consolidated=False))
    assert set(read.groups()) == {"posterior", "unweighted", "weighting"}
    for number, group in enumerate(("unweighted", "weighting", "posterior")):
        for each in said.parameters:
            assert (read[group][each.name].sel(stratum="b") == number).all()


def test_chunks_have_the_bytes_that_zarr_would_write(tmp_path: Path):
    """Several chains, dimensions, and a padded chunk. Control: another value has other bytes."""
    parameters = (Parameter("scale"), Parameter("slopes", (("predictor", ("x", "z")), ("component", ("y", "w")))))
    said = arrays.Template(RaggedAxis.of(np.array([130, 5, 300]), 128), ("a", "b", "c"), 2, 50, parameters)
    rng = np.random.default_rng(2)
    draws = Draws({each.name: rng.normal(size=(100, *each.shape)) for each in parameters})
    values, region = rng.normal(size=(100, 300)), said.axis.region(2, 0, 300)
    for name in ("ours", "zarr's", "other"):
        arrays.create_posterior(tmp_path / name / "p.zarr", said)
        arrays.create_log_lik(tmp_path / name / "t.zarr", said)
    for name, added in (("ours", 0.0), ("other", 1e-12)):
        arrays.write_draws(tmp_path / name / "p.zarr", "final", 1, [Draws({k: v + added for k, v in draws.values.items()})])
        arrays.write_log_lik(tmp_path / name / "t.zarr", region, values + added, np.arange(300))
    for each in parameters:
        array = zarr.open_array(tmp_path / "zarr's" / "p.zarr" / "posterior" / each.name, mode="r+")
        array[:, :, 1] = draws.values[each.name].reshape(2, 50, *each.shape)
    padded = np.pad(values.reshape(2, 50, 300), ((0, 0), (0, 0), (0, 84)), constant_values=np.nan)
    zarr.open_array(tmp_path / "zarr's" / "t.zarr" / "log_lik", mode="r+")[:, :, region.start : region.start + 384] = padded
    rows = zarr.open_array(tmp_path / "zarr's" / "t.zarr" / "record", mode="r+")
    rows[region.start : region.start + 384] = np.pad(np.arange(300), (0, 84), constant_values=-1)

    def chunks(name: str) -> dict[str, bytes]:
        folder = tmp_path / name
        written = (path for path in folder.rglob("*") if path.is_file() and path.name != "zarr.json")
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in written}

    assert chunks("ours") == chunks("zarr's")
    assert chunks("ours") != chunks("other")
