"""Names, fingerprints and signed statements have one form only."""

from __future__ import annotations

import random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pki.identity_key import is_same_fingerprint, public_bytes, sign, verify
from pki.names import Address, site_name
from protos.errors import ConfigurationError, RefusedError
from protos.fingerprints import fingerprint
from tests.for_each import for_each


@pytest.mark.parametrize("text", ["", "A", "1a", "-a", "a" * 41, "a/b", "a b", "a\n", "ä", "a\u0660", "a.b", "a_b"])
def test_everything_else_is_refused(text: str) -> None:
    """No capital, no sign of a URI, no line end and no foreign digit gets into a name."""
    with pytest.raises(ConfigurationError):
        site_name(text)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "a b:1", "2001:db8::7:1", "h_st:1", "h\n:1", "h:1\n"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """A host and a port from 1 to 65535 are both needed."""
    with pytest.raises(ConfigurationError):
        Address.parse(text)


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


@for_each("seed", range(20))
def test_a_statement_is_good_only_as_it_was_signed(seed: int) -> None:
    """Another label, another cut between parts, another byte or another key is refused."""
    generator = random.Random(seed)
    key = Ed25519PrivateKey.from_private_bytes(generator.randbytes(32))
    whole = generator.randbytes(generator.randint(2, 40))
    cut = generator.randint(1, len(whole) - 1)
    parts = (whole[:cut], whole[cut:])
    signature = sign(key, "advert", *parts)

    verify(public_bytes(key), signature, "advert", *parts)
    for public, label, changed in (
        (public_bytes(key), "advert2", parts),
        (public_bytes(key), "advert", (whole,)),
        (public_bytes(key), "advert", (*parts, b"")),
        (public_bytes(key), "advert", (parts[1] + b"x", parts[0])),
        (public_bytes(Ed25519PrivateKey.generate()), "advert", parts),
        (bytes(5), "advert", parts),
    ):
        with pytest.raises(RefusedError):
            verify(public, signature, label, *changed)
