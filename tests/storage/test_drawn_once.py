"""Noise is drawn once, however many ask at the same time; it serves what it was drawn for, and whole, or serves nobody."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from dpdist.core.errors import WorkspaceError
from dpdist.core.records import Floats
from dpdist.privacy.noise import whole_laplace
from dpdist.storage.noise_once import drawn_once
from dpdist.storage.workspace import Workspace

OWN_NOISE = True

RACERS = 4
FACTS = {"law": "laplace", "scale": "3/2", "size": "5", "query": "a", "sums": "b", "dpdist": "0.1.0", "opendp": "0.16.0"}


def workspace(folder: Path) -> Workspace:
    space = Workspace.of_place(folder)
    space.completions.mkdir(parents=True)
    return space


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return workspace(tmp_path / "ws")


def fresh() -> Floats:
    return whole_laplace(Fraction(2**40), 5)


def kept(space: Workspace, draw: Callable[[], Floats] = fresh, **other: str) -> Floats:
    return drawn_once(space, space.noise("strata", 0, 1), FACTS | other, draw)


def undrawn() -> Floats:
    raise AssertionError("it is drawn again")


def race(keep: Callable[[Callable[[], Floats]], Floats]) -> set[bytes]:
    """What each of four racers reads, released together at the moment after each has drawn."""
    barrier = Barrier(RACERS)

    def draw() -> Floats:
        noise = fresh()
        barrier.wait(timeout=30)
        return noise

    with ThreadPoolExecutor(RACERS) as pool:
        return {read.tobytes() for read in pool.map(lambda _: keep(draw), range(RACERS))}


def test_racers_agree_on_one_draw(tmp_path: Path) -> None:
    for round in range(25):
        space = workspace(tmp_path / str(round))
        (agreed,) = race(lambda draw, space=space: kept(space, draw))
        assert kept(space, undrawn).tobytes() == agreed
        assert [p.name for p in (space.confidential / "noise").iterdir()] == ["strata-000000-001.npz"]


def test_without_the_link_racers_disagree(tmp_path: Path) -> None:
    """Negative control: a plain write, each racer returning what it drew."""

    def plain(draw: Callable[[], Floats]) -> Floats:
        noise = draw()
        (tmp_path / "noise").write_bytes(noise.tobytes())
        return noise

    assert len(race(plain)) == RACERS


def test_a_draw_that_fails_leaves_nothing(space: Workspace) -> None:
    def broken() -> Floats:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        kept(space, broken)
    assert [path for path in space.confidential.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"law": "gaussian"}, r"law \(laplace there, gaussian here\)"),
        ({"scale": "3"}, r"scale \(3/2 there, 3 here\)"),
        ({"size": "4"}, r"size \(5 there, 4 here\)"),
        ({"query": "c"}, r"something else: the terms that are summed \(limits, units or bins\)\n"),
        ({"sums": "c"}, r"something else: the exact sums\n"),
        ({"query": "c", "sums": "c"}, r"units or bins\); the exact sums\n"),
        ({"dpdist": "0.2.0"}, r"dpdist \(0.1.0 there, 0.2.0 here\)"),
        (
            {"opendp": "0.17.0"},
            r"(?s)opendp \(0.16.0 there.*continue with the code that drew it \(dpdist 0.1.0 and opendp 0.16.0",
        ),
    ],
)
def test_kept_noise_serves_nothing_but_what_it_was_drawn_for(space: Workspace, other: dict[str, str], told: str) -> None:
    """Each fact alone; the error says which, and shows no checksum. Control: the same facts."""
    drawn = kept(space)
    with pytest.raises(WorkspaceError, match=told) as refused:
        kept(space, undrawn, **other)
    assert refused.value.exit_code == 2
    assert np.array_equal(kept(space, undrawn), drawn)


def flipped(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x04
    path.write_bytes(content)


@pytest.mark.parametrize("place", [0.0, 0.1, 0.3, 0.5, 0.8, 1.0])
def test_a_flipped_bit_of_kept_noise_is_refused_by_name(space: Workspace, place: float) -> None:
    """Also where the mark is lost: the values have checksums of their own, whatever else of the file may be flipped."""
    drawn, path = kept(space), space.noise("strata", 0, 1)
    flipped(path, place)
    with pytest.raises(WorkspaceError, match=r"confidential/noise/strata-000000-001.npz is damaged: .*another checksum"):
        kept(space, undrawn)
    (space.completions / "noise-strata-000000-001.json").unlink()
    try:
        assert np.array_equal(kept(space, undrawn), drawn)
    except WorkspaceError as refused:
        assert "strata-000000-001.npz" in refused.fault  # noqa: PT017 - either is right, according to the bit


@pytest.mark.parametrize("left", [0, 1, 100, -1])
def test_truncated_noise_is_refused_by_name_with_its_mark_or_without(space: Workspace, left: int) -> None:
    kept(space)
    path = space.noise("strata", 0, 1)
    path.write_bytes(path.read_bytes()[:left])
    for _ in range(2):
        with pytest.raises(WorkspaceError, match=r"strata-000000-001.npz is damaged"):
            kept(space, undrawn)
        (space.completions / "noise-strata-000000-001.json").unlink()


def test_noise_that_is_lost_is_not_drawn_again(space: Workspace) -> None:
    """Its mark tells of it. Control: before any draw there is no mark, and noise is drawn."""
    kept(space)
    shutil.rmtree(space.confidential / "noise")
    with pytest.raises(WorkspaceError, match=r"noise/strata-000000-001.npz is missing(?s:.*)restore it from a copy"):
        kept(space, undrawn)


@pytest.mark.parametrize("mark", ["gathered", "sealed"])
def test_after_all_is_gathered_or_published_no_noise_is_drawn(space: Workspace, mark: str) -> None:
    """Whatever is in the mark; noise that stands without its own mark is still taken."""
    drawn = kept(space)
    shutil.rmtree(space.completions)
    space.completions.mkdir()
    (space.completions / f"{mark}.json").write_text("damaged")
    assert np.array_equal(kept(space, undrawn), drawn)
    shutil.rmtree(space.confidential / "noise")
    (space.completions / "noise-strata-000000-001.json").unlink()
    with pytest.raises(WorkspaceError, match="is missing: it was drawn and used"):
        kept(space, undrawn)


def test_a_run_that_dies_between_a_draw_and_its_mark_finds_the_draw(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "mark_once", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kept(space)
    assert np.isfinite(kept(space, undrawn)).all()
    assert (space.completions / "noise-strata-000000-001.json").exists()
