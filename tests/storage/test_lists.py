"""How often an object store is asked for a list: so many times a task, however many strata there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from object_server import BUCKET, Link, ObjectServer

from dpdist.storage.objects import LISTED, Bucket, Objects
from dpdist.storage.workspace import Workspace

PAGE, STRATA, BIN = 10, 160, 32
"""Names in a page of a list; strata in all and of a task."""


@pytest.fixture(scope="module")
def small_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    server = ObjectServer(tmp_path_factory.mktemp("pages"), PAGE)
    yield server
    server.close()


@pytest.fixture(scope="module")
def link(small_pages: ObjectServer) -> Iterator[Link]:
    link = Link(small_pages.port)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in small_pages.environment(port=link.port).items():
            patch.setenv(name, value)
        yield link
    link.cut()


@pytest.fixture(scope="module")
def finished(link: Link) -> str:
    """A workspace whose strata are all finished but one, of which a file is lost, and one that has no mark."""
    objects = Objects(f"s3://{BUCKET}/lists")
    puts: dict[str, bytes] = {}
    for k in range(STRATA):
        names = [f"parts/strata-{k:06d}/{part}" for part in ("stratum.json", "bounds-0.arrow")]
        puts |= {f"confidential/{name}": b"x" for name in names}
        puts[f"confidential/marks/strata-{k:06d}.json"] = json.dumps(dict.fromkeys(names, "y")).encode()
    del puts["confidential/parts/strata-000101/bounds-0.arrow"], puts["confidential/marks/strata-000102.json"]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(objects.put, puts, puts.values()))
    return f"s3://{BUCKET}/lists"


def asked(url: str, strata: range, link: Link) -> tuple[set[str], int]:
    """Those that are finished, and how many pages of lists were asked for."""
    with Workspace.opened(url) as space:
        assert isinstance(space.store, Bucket)
        before = link.lists
        found = space.finished_of([f"strata-{k:06d}" for k in strata])
        return found, link.lists - before


def named(strata: range) -> set[str]:
    return {f"strata-{k:06d}" for k in strata} - {"strata-000101", "strata-000102"}


def test_a_task_lists_the_marks_of_its_own_strata_alone(finished: str, link: Link) -> None:
    pages = BIN // PAGE + 1
    for first in (0, 96, STRATA - BIN):
        own = range(first, first + BIN)
        found, lists = asked(finished, own, link)
        assert found == named(own)
        assert lists <= pages + 1 + 2 * BIN * LISTED // PAGE
    found, lists = asked(finished, range(STRATA, STRATA + BIN), link)
    assert (found, lists) == (set(), 1), "strata that nobody has begun"


def test_a_list_of_files_is_given_up_where_it_holds_too_much_else(finished: str, link: Link) -> None:
    assert asked(finished, range(100, 104), link) == ({"strata-000100", "strata-000103"}, 0), "few are asked for by name"
    found, lists = asked(finished, range(92, 108), link)
    assert found == named(range(92, 108))
    everything = 3 * STRATA // PAGE
    assert lists <= 3 + 2 * 16 * LISTED // PAGE < everything, "marks, and ten names for each file; the rest by name"


def test_all_strata_are_found_by_one_walk_through_marks_and_files(finished: str, link: Link) -> None:
    found, lists = asked(finished, range(STRATA), link)
    assert found == named(range(STRATA))
    assert lists <= (STRATA + 3 * STRATA) // PAGE + 2


def test_a_list_between_two_names_holds_both_and_nothing_beyond(finished: str, link: Link) -> None:
    objects = Objects(finished)
    first, last = (f"confidential/marks/strata-{k:06d}.json" for k in (20, 29))
    before = link.lists
    assert objects.between(first, last, 10) == {f"confidential/marks/strata-{k:06d}.json" for k in range(20, 30)}
    assert link.lists - before == 1
    assert objects.between("confidential/marks/a", "confidential/marks/b", 1) == set()
