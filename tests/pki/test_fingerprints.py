"""Fingerprints survive the telephone."""

from __future__ import annotations

import random

from pki.identity_key import is_same_fingerprint
from protos.fingerprints import fingerprint
from tests.for_each import for_each


@for_each("seed", range(20))
def test_a_fingerprint_has_eight_groups_and_tells_keys_apart(seed: int) -> None:
    """160 bits are 8 groups of 4; one flipped bit of the key gives another fingerprint."""
    key = bytearray(random.Random(seed).randbytes(32))
    first = fingerprint(bytes(key))
    key[seed] ^= 1

    assert [len(group) for group in first.split("-")] == [4] * 8
    assert not is_same_fingerprint(fingerprint(bytes(key)), first)


def test_what_a_person_types_is_understood() -> None:
    """Capitals, spaces and missing hyphens do not matter."""
    text = fingerprint(bytes(32))

    assert is_same_fingerprint(text.upper().replace("-", "  ") + "\n", text)
    assert not is_same_fingerprint("", text)
    assert not is_same_fingerprint(text[:-1], text)
    assert not is_same_fingerprint("ä", text)
