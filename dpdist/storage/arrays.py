"""Zarr stores, created whole from a template before any task runs; tasks only fill regions that they own.

Zarr v3, no consolidated metadata, no fixed-width strings, float64, blosc lz4 with byte shuffle (measured fastest).
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec

from dpdist.models.protocol import Draws
from dpdist.records import Floats, Ints
from dpdist.storage.ragged import RaggedAxis

FITS = ("unweighted", "weighting", "final")
_CODEC = BloscCodec(cname="lz4", clevel=1, shuffle="shuffle")


@dataclass(frozen=True)
class Template:
    """Sizes and names that both stores are created from."""

    axis: RaggedAxis
    strata: tuple[str, ...]
    draws: int
    predictors: tuple[str, ...]
    components: tuple[str, str]


def create_posterior(path: Path, template: Template) -> None:
    """posterior.zarr: coefficients (chain, draw, stratum, predictor, component) and covariance (…, other_component).

    The root holds the final fit; groups `unweighted` and `weighting` the α = 1 fit and the fit that gave the final α.
    """
    root = _new_group(path)
    strata, draws, predictors = len(template.strata), template.draws, len(template.predictors)
    logs = [f"log {name}" for name in template.components]
    for fit in FITS:
        group = root if fit == "final" else root.create_group(fit)
        _coordinates(group, draws)
        _strings(group, "stratum", template.strata)
        _strings(group, "predictor", template.predictors)
        _strings(group, "component", logs)
        _strings(group, "other_component", logs)
        for name, dims, shape in (
            ("coefficients", ("predictor", "component"), (predictors, 2)),
            ("covariance", ("component", "other_component"), (2, 2)),
        ):
            _array(
                group,
                name,
                (1, draws, strata, *shape),
                (1, draws, 1, *shape),
                ("chain", "draw", "stratum", *dims),
                {"units": "natural logarithm"},
            )


def create_log_lik(path: Path, template: Template) -> None:
    """log_lik.zarr: log_lik (chain, draw, record) of the final fit; padding NaN, coordinate `record` −1 there.

    `offset` and `length` (stratum) say where each stratum's records lie.
    """
    root, axis = _new_group(path), template.axis
    _coordinates(root, template.draws)
    _strings(root, "stratum", template.strata)
    _filled(root, "offset", axis.offset, ("stratum",), "first position of the stratum on the record axis")
    _filled(root, "length", axis.length, ("stratum",), "records of the stratum")
    _array(
        root,
        "log_lik",
        (1, template.draws, axis.size),
        (1, template.draws, axis.chunk),
        ("chain", "draw", "record"),
        {"units": "natural logarithm of a density", "long_name": "record log likelihood under the final fit"},
    )
    root.create_array(
        "record",
        shape=(axis.size,),
        chunks=(axis.chunk,),
        dtype="int64",
        fill_value=-1,
        dimension_names=("record",),
        attributes={"long_name": "row number in the input; -1 is padding"},
    )


def write_draws(path: Path, fit: str, stratum: int, draws: Draws) -> None:
    place = path if fit == "final" else path / fit
    _opened(place / "coefficients")[0, :, stratum] = draws.coefficients
    _opened(place / "covariance")[0, :, stratum] = draws.covariance


def write_log_lik(path: Path, region: slice, values: Floats, record: Ints) -> None:
    """Values (draw, record) into a region that the caller owns.

    Whole chunks are written, the last one padded: nothing of a chunk that a killed run left is read.
    """
    tensor, rows = _opened(path / "log_lik"), _opened(path / "record")
    chunk = rows.chunks[0]
    inside = len(record) // chunk * chunk
    if inside:
        tensor[0, :, region.start : region.start + inside] = values[:, :inside]
        rows[region.start : region.start + inside] = record[:inside]
    if inside < len(record):
        last = slice(region.start + inside, region.start + inside + chunk)
        padding = (0, last.stop - region.stop)
        tensor[0, :, last] = np.pad(values[:, inside:], ((0, 0), padding), constant_values=np.nan)
        rows[last] = np.pad(record[inside:], padding, constant_values=-1)


def files_of(path: Path) -> list[Path]:
    """Every file of a store: of a new one, its metadata and coordinates."""
    return [file for file in path.rglob("*") if file.is_file()]


def chunk_files(path: Path, chunk: int, region: slice) -> list[Path]:
    """The chunk files of a region in log_lik.zarr."""
    chunks = range(region.start // chunk, -(-region.stop // chunk))
    values = [path / "log_lik" / "c" / "0" / "0" / str(k) for k in chunks]
    return values + [path / "record" / "c" / str(k) for k in chunks]


def posterior_files(path: Path, stratum: int) -> list[Path]:
    """The chunk files of one stratum in posterior.zarr."""
    tail = [f"coefficients/c/0/0/{stratum}/0/0", f"covariance/c/0/0/{stratum}/0/0"]
    return [path / ("" if fit == "final" else fit) / name for fit in FITS for name in tail]


def _opened(path: Path) -> zarr.Array[Any]:
    """An array of a store, opened once a process as long as its metadata file is the same one."""
    said = (path / "zarr.json").stat()
    return _open(path, (said.st_ino, said.st_mtime_ns))


@lru_cache(maxsize=16)
def _open(path: Path, stamp: tuple[int, int]) -> zarr.Array[Any]:
    return zarr.open_array(path, mode="r+")


def _new_group(path: Path) -> zarr.Group:
    if path.exists():
        shutil.rmtree(path)
    return zarr.create_group(path, zarr_format=3)


def _array(
    group: zarr.Group,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dims: tuple[str, ...],
    said: dict[str, str],
) -> None:
    group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        dtype="float64",
        fill_value=float("nan"),
        compressors=_CODEC,
        dimension_names=dims,
        attributes=dict(said),
    )


def _coordinates(group: zarr.Group, draws: int) -> None:
    _filled(group, "chain", np.zeros(1, dtype=np.int64), ("chain",), "chain")
    _filled(group, "draw", np.arange(draws, dtype=np.int64), ("draw",), "posterior draw")


def _filled(group: zarr.Group, name: str, values: Ints, dims: tuple[str, ...], meaning: str) -> None:
    array = group.create_array(
        name,
        shape=values.shape,
        chunks=values.shape,
        dtype=values.dtype,
        dimension_names=dims,
        attributes={"long_name": meaning},
    )
    array[...] = values


def _strings(group: zarr.Group, name: str, values: Sequence[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        array = group.create_array(
            name, shape=(len(values),), chunks=(len(values),), dtype="string", dimension_names=(name,)
        )
        array[...] = np.array(values, dtype=np.dtypes.StringDType())
