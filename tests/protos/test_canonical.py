"""Bytes that have only one meaning."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.plan.canonical import PROTOCOL, digest, pack

_FIELDS = st.lists(st.binary(max_size=12), max_size=5)


@given(one=_FIELDS, other=_FIELDS)
def test_packing_is_injective(one: list[bytes], other: list[bytes]) -> None:
    """Two lists of fields share their bytes only where they are the same list."""
    packed = pack("purpose", *one), pack("purpose", *other)

    assert (packed[0] == packed[1]) == (one == other)


@given(fields=_FIELDS)
def test_the_purpose_keeps_statements_apart(fields: list[bytes]) -> None:
    """The same fields for another purpose are other bytes, also where the purpose is a field's text."""
    assert pack("plan", *fields) != pack("manifest", *fields)
    assert pack("plan", b"manifest", *fields) != pack("manifest", b"plan", *fields)


def test_the_layout_is_the_documented_one() -> None:
    """Length in eight little-endian bytes, then the field; label, purpose, fields; numbers are signed."""
    expected = b"".join(
        struct.pack("<Q", len(part)) + part
        for part in (PROTOCOL.encode(), b"plan", b"\x00", "é".encode(), struct.pack("<q", -2))
    )

    packed = pack("plan", b"\x00", "é", -2)

    assert packed == expected
    assert digest("plan", b"\x00", "é", -2) == hashlib.sha256(expected).digest()


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64])
def test_a_number_beyond_64_bits_is_refused(number: int) -> None:
    """A number that does not fit is never shortened."""
    with pytest.raises(struct.error):
        pack("n", number)
