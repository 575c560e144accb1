"""Keys: the same address the same stream, any other address another, and nothing shows the root."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpdist.core.keys import Key, Recent, open_uniforms

pytestmark = pytest.mark.quick

KEY = Key(b"tests/test_keys")
fixed = settings(derandomize=True, deadline=None)
addresses = st.tuples(st.text(max_size=4), st.text(max_size=4), st.integers(0, 30), st.integers(0, 30))


def stream(key, stage="s", stratum="", block=0, set=0):
    """The first 512 bits; two different streams agree in them with chance 2⁻⁵¹²."""
    return key.generator(stage, stratum, block=block, set=set).integers(0, 2**63, 8).tolist()


@fixed
@given(addresses)
def test_the_same_address_gives_the_same_stream(address):
    assert stream(KEY, *address) == stream(Key(b"tests/test_keys"), *address)


@fixed
@given(addresses, addresses)
def test_streams_agree_only_where_addresses_do(one, other):
    assert (stream(KEY, *one) == stream(KEY, *other)) == (one == other)


@pytest.mark.parametrize("change", [{"stage": "t"}, {"stratum": "t"}, {"block": 1}, {"set": 1}])
def test_every_component_of_the_address_matters(change):
    assert stream(KEY) != stream(KEY, **change)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("ab", ""), ("a", "b")),
        (("", "ab"), ("ab", "")),
        (("a", "b", 1, 11), ("a", "b", 11, 1)),
        (("a", "b1", 1), ("a", "b", 11)),
        (("a", "\0"), ("a\0", "")),
        (("é", "x"), ("e\u0301", "x")),
    ],
)
def test_the_encoding_of_an_address_is_unambiguous(one, other):
    assert stream(KEY, *one) != stream(KEY, *other)


def test_a_root_of_its_own_gives_streams_of_its_own():
    assert stream(KEY) != stream(Key(b"tests/test_keyz"))


def test_child_keys_differ_from_each_other_and_from_their_parent():
    keys = [KEY, KEY.child("a"), KEY.child("b"), KEY.child("a").child("b"), KEY.child("b").child("a")]
    assert len({key.root for key in keys}) == len(keys)
    assert len({tuple(stream(key)) for key in keys}) == len(keys)
    assert KEY.child("a") == Key(b"tests/test_keys").child("a")


@fixed
@given(st.binary(min_size=16, max_size=32))
def test_no_text_of_a_key_shows_its_root(root):
    key = Key(root)
    for text in (repr(key), str(key), f"{key}", f"{key!r}", f"{(key,)}", f"{{'seed': {key}}}"):
        assert root.hex() not in text
        assert repr(root)[2:-1] not in text


def test_a_key_survives_its_hexadecimal_form_and_a_trip_to_a_worker():
    assert Key.from_hex(KEY.hex() + "\n") == KEY
    assert pickle.loads(pickle.dumps(KEY)) == KEY


def test_keys_from_the_operating_system_are_256_bits_and_differ():
    keys = [Key.from_os() for _ in range(4)]
    assert {len(key.root) for key in keys} == {32}
    assert len(set(keys)) == 4


def test_streams_are_uniform():
    """Kolmogorov distance of 10⁵ uniforms from 8 blocks under 2.7/√n: false alarm 1e-6; control: their squares."""
    u = np.concatenate([open_uniforms(KEY.generator("uniform", block=b), (12_500,)) for b in range(8)])

    def distance(values):
        return np.abs(np.sort(values) - (np.arange(len(values)) + 0.5) / len(values)).max() * np.sqrt(len(values))

    assert distance(u) < 2.7
    assert distance(u**2) > 2.7


def test_neighbouring_blocks_are_uncorrelated():
    """Correlation of 10⁵ pairs under 4.9/√n: false alarm 1e-6; control: a stream with itself."""
    one, other = (KEY.generator("normal", block=b).standard_normal(100_000) for b in (0, 1))
    assert abs(np.corrcoef(one, other)[0, 1]) * np.sqrt(1e5) < 4.9
    assert abs(np.corrcoef(one, one)[0, 1]) * np.sqrt(1e5) > 4.9


class Extreme:
    """A generator at the ends of what `random` may return: 0 and 1 − 2⁻⁵³."""

    def random(self, shape):
        return np.resize([0.0, 2.0**-53, 0.5, 1.0 - 2.0**-52, 1.0 - 2.0**-53], shape)


def test_open_uniforms_are_strictly_inside_the_unit_interval():
    uniforms = open_uniforms(Extreme(), (5,))
    assert np.all(uniforms > 0.0)
    assert np.all(uniforms < 1.0)
    assert np.all(np.diff(uniforms) >= 0.0)


def test_open_uniforms_have_the_shape_asked_for():
    assert open_uniforms(KEY.generator("shape"), (3, 2)).shape == (3, 2)


def test_the_last_values_are_kept_while_they_are_small() -> None:
    """Five values of size 3, of which ten are kept in all: the last three. Two are kept whatever their sizes."""
    computed = list[int]()

    def value(of: Recent[int], number: int) -> int:
        return of(str(number), lambda: computed.append(number) or number)

    for size, kept in ((3, 3), (100, 2)):
        recent = Recent[int](2, 10, lambda _, size=size: size)
        computed.clear()
        assert [value(recent, number) for number in range(5)] == list(range(5))
        for number in reversed(range(5 - kept, 5)):
            value(recent, number)
        assert computed == list(range(5))
        value(recent, 4 - kept)
        assert computed[5:] == [4 - kept]
        recent.clear()
        value(recent, 4 - kept)
        assert computed[6:] == [4 - kept]
    last = Recent[int]()
    assert (value(last, 7), value(last, 8), last.get("7"), last.get("8")) == (7, 8, None, 8)
