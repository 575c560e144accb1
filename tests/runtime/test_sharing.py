"""Pieces of work by files: large arrays are mapped, and results wait in files."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdist.core.sharing import PiecesInTurn
from dpdist.job import Runtime
from dpdist.runtime import sharing
from dpdist.runtime.executors import Serial
from dpdist.runtime.sharing import ARRAYS, LARGE, Pieces, folder_of, store, unpickle
from dpdist.storage.workspace import Workspace


def test_large_arrays_have_a_file_of_their_own_that_processes_map(tmp_path: Path) -> None:
    """In any order in memory, and beside small ones. Changes stay in the process."""
    space = Workspace(tmp_path)
    large = np.arange(LARGE, dtype=np.float64).reshape(256, -1)
    value = {"rows": large, "columns": np.asfortranarray(large), "part": large[::2], "small": np.arange(3), "text": "x"}
    store(space, "some", {"work": value})
    for _ in range(2):
        found = unpickle(space, "some", "work")
        assert found.keys() == value.keys()
        assert all(np.array_equal(found[name], value[name]) for name in ("rows", "columns", "part", "small"))
        assert found["columns"].flags.f_contiguous
        found["rows"][:] = 0.0
    size = (folder_of(space, "some") / f"work{ARRAYS}").stat().st_size
    assert 2 * large.nbytes <= size < 2 * large.nbytes + LARGE
    assert (folder_of(space, "some") / "work").stat().st_size < large.nbytes + 2 * LARGE
    store(space, "few", {"work": {"small": np.arange(3)}})
    assert sorted(path.name for path in folder_of(space, "few").iterdir()) == ["work"]


class _LastFirst(Serial):
    """Runs tasks in this process, the last one first."""

    def map(self, task: Callable[[int], Any], keys: Sequence[int]) -> Iterator[Any]:
        yield from super().map(task, keys[::-1])


def test_results_come_in_the_order_of_pieces_which_are_made_one_at_a_time(tmp_path: Path) -> None:
    """Every piece is stored before the next is made."""
    space, stored = Workspace(tmp_path), list[int]()

    def piece(number: int) -> int:
        stored.append(len(list(tmp_path.glob("confidential/pieces/*/0*"))))
        return number

    pieces = Pieces(_LastFirst(Runtime()), space)
    assert list(pieces(_square, PiecesInTurn(piece, 4))) == [0, 1, 4, 9]
    assert stored == [0, 1, 2, 3]
    assert not list(tmp_path.glob("confidential/pieces/*"))


def _square(number: int) -> int:
    return number**2


class _Work:
    """Work that a test can watch."""

    def __call__(self, number: int) -> int:
        return number


def test_work_is_forgotten_once_it_is_stored(tmp_path: Path) -> None:
    """It may hold draws of many cells, which the driver then need not keep."""
    work = _Work()
    alive, results = weakref.ref(work), Pieces(Serial(Runtime()), Workspace(tmp_path))(work, range(2))
    del work
    assert alive() is not None
    assert next(results) == 0
    assert alive() is None
    assert next(results) == 1


@pytest.mark.parametrize(("much", "returned"), [(0, [1, 2]), (2**60, [])])
def test_a_large_process_returns_memory_after_every_piece(
    much: int, returned: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the result is stored. Control: a smaller process keeps it."""
    found = list[int]()

    def stored_results() -> None:
        found.append(len(list(tmp_path.glob(f"confidential/pieces/*/*{sharing.RESULT}"))))

    monkeypatch.setattr(sharing, "MUCH", much)
    monkeypatch.setattr(sharing, "return_memory", stored_results)
    assert list(Pieces(_LastFirst(Runtime()), Workspace(tmp_path))(_square, range(2))) == [0, 1]
    assert found == returned


@pytest.mark.parametrize("number", [-1, 0, 3])
def test_pieces_in_turn_are_a_sequence(number: int) -> None:
    pieces = PiecesInTurn(str, 4)
    assert pieces[number] == "0123"[number]
    assert list(pieces) == pieces[:] == ["0", "1", "2", "3"]
    with pytest.raises(IndexError):
        pieces[4]
