"""What a workspace asks of the place that it is in, a shared folder or an object store (moto's S3 server): what one process
keeps another finds, one of several writers decides, and one run works at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from object_server import BUCKET, ObjectServer

from dpdist.core.errors import WorkspaceError
from dpdist.core.keys import Key
from dpdist.storage.noise_once import drawn_once
from dpdist.storage.objects import Bucket
from dpdist.storage.ownership import owned
from dpdist.storage.workspace import Identity, Workspace

View = Callable[[], Workspace]
_numbers = count()


def views(place: str | Path) -> Iterator[View]:
    """Workspaces of one place as several processes see it."""
    made: list[Workspace] = []

    def see() -> Workspace:
        space = Workspace.of_place(place)
        space.completions.mkdir(parents=True, exist_ok=True)
        made.append(space)
        return space

    yield see
    for space in made:
        space.store.close()


@pytest.fixture
def in_bucket(s3: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[View]:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    yield from views(f"s3://{BUCKET}/store/{next(_numbers)}")


@pytest.fixture
def in_folder(tmp_path: Path) -> Iterator[View]:
    yield from views(tmp_path / "shared")


@pytest.fixture(params=["in_folder", "in_bucket"])
def view(request: pytest.FixtureRequest) -> View:
    chosen: View = request.getfixturevalue(request.param)
    return chosen


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.quick
def test_what_one_keeps_another_takes_and_what_is_dropped_is_gone(view: View) -> None:
    here, there = view(), view()
    files = [write(here.confidential / name, name) for name in ("a", "parts/b", "parts/deep/c")]
    here.store.upload(files)
    assert all(there.store.download(there.root / path.relative_to(here.root)) for path in files)
    assert (there.confidential / "parts" / "deep" / "c").read_text() == "parts/deep/c"
    assert there.store.names(there.confidential / "parts") == {"b", "deep"}
    assert not there.store.download(there.confidential / "d")
    assert there.store.names(there.confidential / "d") == set()
    write(files[0], "other")
    here.store.upload(files[:1])
    assert there.store.download(there.confidential / "a", anew=True)
    assert (there.confidential / "a").read_text() == "other"
    (here.confidential / "parts" / "b").unlink()
    here.store.delete([here.confidential / "parts" / "b"])
    third = view()
    assert third.store.names(third.confidential / "parts") == {"deep"}


def test_a_unit_is_finished_for_everybody_with_its_mark_and_all_its_files(view: View) -> None:
    here, there = view(), view()
    files = [write(here.confidential / "parts" / name, name) for name in "ab"]
    assert there.finished_of(["unit", "other"]) == set()
    here.mark("unit", files)
    assert there.finished_of(["unit", "other"]) == {"unit"}
    here.store.discard(files)
    there.take_units(["unit", "other"])
    assert [(there.confidential / "parts" / name).read_text() for name in "ab"] == ["a", "b"]
    (here.confidential / "parts" / "a").unlink(missing_ok=True)
    here.store.delete([here.confidential / "parts" / "a"])
    assert not view().finished("unit")


@pytest.mark.quick
def test_of_two_writers_of_a_mark_the_first_decides_and_the_second_takes_it(view: View) -> None:
    """They have written the same bytes; where one has not, its files and mark give way together."""
    one, other = view(), view()
    for space in (one, other):
        space.mark("unit", [write(space.confidential / "parts" / "a", "same")])
    assert (one.completions / "unit.json").read_bytes() == (other.completions / "unit.json").read_bytes()
    other.mark("unit", [write(other.confidential / "parts" / "a", "different")])
    third = view()
    third.take_units(["unit"])
    assert (third.confidential / "parts" / "a").read_text() == "different"


def test_settling_tells_who_was_first(in_bucket: View) -> None:
    """In a folder the link decides (test_drawn_once). Negative control: kept without a condition, the last one decides."""
    one, other = in_bucket(), in_bucket()
    assert one.store.put_if_absent(write(one.confidential / "x", "first"))
    assert not other.store.put_if_absent(write(other.confidential / "x", "second"))
    assert (other.confidential / "x").read_text() == "first"
    assert other.store.put_if_absent(write(other.confidential / "x", "first"))
    other.store.upload([write(other.confidential / "x", "second")])
    assert one.store.download(one.confidential / "x", anew=True)
    assert (one.confidential / "x").read_text() == "second"


RACERS = 4
FACTS = {"scale": "2", "sums": "a"}
"""What noise is drawn for."""


def test_racers_in_several_processes_agree_on_one_draw(view: View) -> None:
    spaces, rng = [view() for _ in range(RACERS)], np.random.default_rng(1)
    for round in range(5):
        barrier = Barrier(RACERS)

        def draw(barrier: Barrier = barrier) -> np.ndarray:
            noise = rng.normal(size=5)
            barrier.wait(timeout=30)
            return noise

        def race(space: Workspace, round: int = round, draw: Callable[[], np.ndarray] = draw) -> bytes:
            return drawn_once(space, space.noise("strata", round, 1), FACTS, draw).tobytes()

        with ThreadPoolExecutor(RACERS) as pool:
            (agreed,) = set(pool.map(race, spaces))
        assert race(view(), draw=lambda: np.zeros(5)) == agreed


def undrawn() -> np.ndarray:
    raise AssertionError("it is drawn again")


def test_noise_that_another_process_finds_lost_or_drawn_for_something_else_is_refused(view: View) -> None:
    """The mark of a draw is everybody's. Control: as it was kept it is taken."""
    here = view()
    path = here.noise("strata", 0, 1)
    drawn = drawn_once(here, path, FACTS, lambda: np.array([1.0]))
    there = view()
    assert drawn_once(there, there.noise("strata", 0, 1), FACTS, undrawn) == drawn
    with pytest.raises(WorkspaceError, match="drawn for something else: the exact sums"):
        drawn_once(there, there.noise("strata", 0, 1), FACTS | {"sums": "b"}, undrawn)
    path.unlink()
    here.store.delete([path])
    last = view()
    with pytest.raises(WorkspaceError, match="is missing: it was drawn and used"):
        drawn_once(last, last.noise("strata", 0, 1), FACTS, undrawn)


def test_one_run_at_a_time(view: View) -> None:
    one, other = view(), view()
    with one.store.lock(one.confidential / "lock"), pytest.raises(WorkspaceError, match="another run is using it"):
        other.store.lock(other.confidential / "lock").__enter__()
    with other.store.lock(other.confidential / "lock"):
        pass


def test_an_object_that_is_not_what_its_mark_tells_of_loses_the_mark(view: View) -> None:
    here = view()
    path = write(here.confidential / "parts" / "a", "right")
    here.mark("unit", [path])
    if here.store.shared:
        assert not (path.write_text("wrong") and here.finished("unit"))
        return
    here.store.upload([write(path, "wrong")])
    there = view()
    with pytest.raises(WorkspaceError, match="parts/a is missing, or its checksum differs from that in its mark"):
        there.take_units(["unit"])
    assert not view().finished("unit")


def test_a_public_folder_is_shown_with_its_manifest_last(in_bucket: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any moment in between, a reader sees the old release, or none, never parts of two under a manifest."""
    here = in_bucket()
    assert isinstance(here.store, Bucket)
    objects, public = here.store.objects, here.public
    for text in ("old", "new"):
        write(public / "tables" / "t.csv", text)
        write(public / "manifest.json", f"manifest of {text}")
        if text == "old":
            write(public / "gone.json", "old")
            here.store.publish(public)
            (public / "gone.json").unlink()
    seen: list[set[str]] = []
    put = objects.put
    monkeypatch.setattr(objects, "put", lambda name, data: (seen.append(objects.inside("public")), put(name, data)))
    here.store.publish(public)
    assert all("manifest.json" not in names for names in seen)
    assert set(objects.below("public")) == {"public/tables/t.csv", "public/manifest.json"}


def test_a_put_that_is_refused_for_one_that_never_lands_is_tried_again(
    in_bucket: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 answers 409 while another's conditional put is under way. Negative control: without an end to it, an error."""
    here = in_bucket()
    assert isinstance(here.store, Bucket)
    create, refusals = here.store.objects.create, [None, None]
    monkeypatch.setattr(here.store.objects, "create", lambda *said: refusals.pop() if refusals else create(*said))
    kept = drawn_once(here, here.noise("strata", 0, 1), FACTS, lambda: np.array([1.0]))
    there = in_bucket()
    assert drawn_once(there, there.noise("strata", 0, 1), FACTS, lambda: np.array([2.0])) == kept == [1.0]
    monkeypatch.setattr("dpdist.storage.objects.SETTLINGS", 2)
    monkeypatch.setattr(here.store.objects, "create", lambda *said: None)
    path = here.noise("strata", 1, 1)
    with pytest.raises(WorkspaceError, match="can neither be written nor read"):
        drawn_once(here, path, FACTS, lambda: np.array([1.0]))
    assert not path.exists(), "a draw that nobody keeps is not taken up again"


def test_two_jobs_never_share_a_key(in_bucket: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first driver falls silent between its key and its identity, and a second one takes over with another job."""
    one, other = in_bucket(), in_bucket()
    put, keys = one.store.put_if_absent, list[Key]()

    def silent_then(path: Path) -> bool:
        if path == one.identity and not keys:
            with owned(other, Identity({"epsilon": "1"}, "other"), None) as key:
                keys.append(key)
        return put(path)

    monkeypatch.setattr(one.store, "put_if_absent", silent_then)
    monkeypatch.setattr(other.store, "lock", lambda path: nullcontext())
    with pytest.raises(WorkspaceError, match="belongs to another job"), owned(one, Identity({"epsilon": "2"}, "own"), None):
        pass
    assert len(keys) == 1


def test_a_public_folder_without_a_manifest_is_not_published_again(in_bucket: View) -> None:
    here = in_bucket()
    here.store.upload([write(here.public / "tables" / "t.csv", "half")])
    there = in_bucket()
    with pytest.raises(WorkspaceError, match="has no manifest"), there.publishing():
        pass
