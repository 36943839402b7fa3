"""A signature is valid for one statement only."""

from __future__ import annotations

import random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pki.identity_key import public_bytes, sign, verify
from protos.errors import RefusedError
from tests.for_each import for_each


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
