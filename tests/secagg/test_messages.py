"""Bytes on the wire: what was sent comes back, and nothing else is read."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import TacitError
from tacit.secagg.messages import (
    KINDS,
    MAGIC,
    Masked,
    Refused,
    Survivors,
    Terms,
    decode,
    encode,
    largest,
    pack,
    packed_bytes,
    residues,
    unpack,
)
from tests.secagg.rounds import STAGES, Round, inputs, terms


@pytest.fixture(scope="module")
def sent() -> list[bytes]:
    """Every message of a round with drop-outs, in both directions."""
    of = terms(7)
    one = Round(of, inputs(of), {10: 0, 11: 2})
    one.sum()
    return [encode(m) for stage in (*one.told[:STAGES], *one.sent) for m in stage.values()]


def test_all_kinds_of_messages_come_back_as_they_were(sent: list[bytes]) -> None:
    assert {type(decode(blob)) for blob in sent} == set(KINDS)
    assert all(encode(decode(blob)) == blob for blob in sent)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_cut_longer_and_changed_messages_are_refused_or_are_others(sent: list[bytes], data: st.DataObject) -> None:
    blob = data.draw(st.sampled_from(sent))
    cut = data.draw(st.integers(0, len(blob) - 1))
    with pytest.raises(Refused):
        decode(blob[:cut])
    with pytest.raises(Refused):
        decode(blob + b"\0")
    changed = bytearray(blob)
    changed[cut] ^= data.draw(st.integers(1, 255))
    with suppress(Refused):
        assert encode(decode(bytes(changed))) == changed


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(blob: bytes) -> None:
    for head in (b"", MAGIC):
        if head or not blob.startswith(MAGIC):
            with suppress(Refused):
                assert encode(decode(head + blob)) == head + blob


def test_a_count_that_cannot_be_is_refused_without_reserving_memory() -> None:
    blob = encode(Survivors(b"", (1,)))
    with pytest.raises(Refused, match="4,294,967,295 items"):
        decode(blob[:-12] + b"\xff\xff\xff\xff" + blob[-8:])


def test_no_message_of_a_client_is_larger_than_stated_and_a_larger_one_is_not_read() -> None:
    for n, size in ((3, 0), (7, 1000), (20, 5)):
        of = terms(n, size=size)
        one = Round(of, inputs(of), {10: 2})
        one.sum()
        longest = max(len(encode(message)) for stage in one.sent for message in stage.values())
        assert longest <= largest(of)
    with pytest.raises(Refused, match="none of this round has more than"):
        decode(encode(Masked(of.digest, 10, bytes(10**6))), largest(of))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 32), st.lists(st.integers(-(2**40), 2**40), max_size=70))
def test_integers_are_packed_without_gaps(bits: int, values: list[int]) -> None:
    given = residues(np.array(values, np.int64), bits)
    body = pack(given, bits)
    found = unpack(body, len(values), bits)
    assert len(body) == packed_bytes(len(values), bits) == -(-len(values) * bits // 8)
    assert found is not None
    assert found.tolist() == [value % 2**bits for value in values]


def test_packing_by_hand() -> None:
    """1, 2, 3 in 5 bits, lowest first: 10000 01000 11000 and a zero, in bytes 01000001 00001100 read backwards."""
    assert pack(np.array([1, 2, 3], np.uint32), 5) == bytes([0b01000001, 0b00001100])


def test_floats_cannot_be_summed() -> None:
    with pytest.raises(TacitError, match="only integers"):
        residues(np.zeros(3), 8)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"members": ()}, "distinct"),
        ({"members": (2, 1, 3, 4, 5)}, "rising"),
        ({"members": (1, 2, 3, 4, 2**64)}, "2\\^64"),
        ({"bits": 0}, "bits"),
        ({"bits": 33}, "bits"),
        ({"threshold": 2}, "more than half of 5"),
        ({"threshold": 6, "least": 6}, "more than half of 5"),
        ({"least": 2}, "least"),
        ({"least": 6}, "least"),
        ({"round": -1}, "round"),
    ],
)
def test_terms_that_protect_nobody_are_refused(change: dict[str, object], match: str) -> None:
    with pytest.raises(TacitError, match=match):
        replace(terms(5), **change)


def test_every_field_of_the_terms_changes_their_digest() -> None:
    of = terms(5)
    changes = ["other", 4, (*of.members[:4], 99), 8, 21, 4, 5, 1]
    names = list(Terms.__dataclass_fields__)
    others = [replace(of, **{"least": 4, name: value}) for name, value in zip(names, changes, strict=True)]
    assert len({each.digest for each in (of, *others)}) == len(names) + 1
