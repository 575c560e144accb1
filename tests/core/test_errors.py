"""An error that a worker raises arrives whole: its kind, its text, its attributes."""

import inspect
import pickle
from collections.abc import Iterator

import pytest

from dpdist.core.errors import DpdistError, Problem
from dpdist.core.minisign import SignatureError

GIVEN = {"problems": [Problem("y", "text", "numbers", "mend it", 3, ("row 1",), ("7x",))], "exit_code": 2}


def kinds(base: type[DpdistError]) -> Iterator[type[DpdistError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


def made(kind: type[DpdistError]) -> DpdistError:
    return kind(**{name: GIVEN.get(name, f"the {name}") for name in inspect.signature(kind).parameters})


class Late(DpdistError):
    """A kind that another module adds and says nothing of copies."""

    def __init__(self, where: str, *, remedy: str):
        self.where, self.remedy = where, remedy
        super().__init__(f"{where}: {remedy}")


@pytest.mark.parametrize("kind", sorted({*kinds(DpdistError), SignatureError, Late}, key=lambda kind: kind.__name__))
def test_an_error_arrives_whole(kind: type[DpdistError]):
    sent = made(kind)
    sent.add_note("while stratum 3 was fitted")
    got = pickle.loads(pickle.dumps(sent))
    assert (type(got), str(got), got.text(show_values=True)) == (kind, str(sent), sent.text(show_values=True))
    assert vars(got) == vars(sent)
    assert got.exit_code == sent.exit_code


def test_one_base_says_how_errors_are_copied():
    assert [kind.__name__ for kind in kinds(DpdistError) if "__reduce__" in vars(kind)] == []
