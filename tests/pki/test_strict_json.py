"""Hostile files give three sentences, never a traceback."""

from __future__ import annotations

import json

import pytest

from pki.strict_json import LARGEST_BYTES, decode, encode
from protos.errors import ConfigurationError

KINDS: dict[str, type[str] | type[int] | type[bool]] = {"name": str, "count": int}


def test_an_object_comes_back_as_it_went() -> None:
    """Encoding and decoding agree."""
    assert decode(encode({"name": "ä", "count": 3}), kinds=KINDS, subject="thing") == {"name": "ä", "count": 3}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe",
        b"[" * 60000,
        b'{"name": "a"}',
        b'{"name": "a", "count": 1, "more": 1}',
        b'{"name": "a", "count": 1, "count": 1}',
        b'{"name": 1, "count": 1}',
        b'{"name": "a", "count": true}',
        b'{"name": "a", "count": 1.0}',
        b'{"name": "a", "count": NaN}',
        b'{"name": "a", "count": ' + b"9" * 5000 + b"}",
        b'{"name": "\\ud800", "count": 1}',
        json.dumps({"name": "a" * LARGEST_BYTES, "count": 1}).encode(),
    ],
    ids=range(16),
)
def test_anything_else_is_an_operators_error(data: bytes) -> None:
    """Wrong types, missing, further and repeated keys, depth, size and encoding are all explained."""
    with pytest.raises(ConfigurationError, match="not a usable thing"):
        decode(data, kinds=KINDS, subject="thing")
