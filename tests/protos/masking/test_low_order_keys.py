"""Exchange keys of low order are refused by the library and again by us, in every encoding."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protos.masking import key_session as module
from protos.masking.key_session import expand, pair_key
from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.plan.canonical import pack


def _private(name: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


# Every encoding of a point of order 1, 2, 4 or 8 on the curve and its twist, with and without the
# ignored top bit. Source: Bernstein, "Curve25519", 2006, and https://cr.yp.to/ecdh.html#validate.
_PRIME = 2**255 - 19
_ORDER_EIGHT = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
LOW_ORDER = sorted(
    (number | top).to_bytes(32, "little")
    for number in {0, 1, *_ORDER_EIGHT, _PRIME - 1, _PRIME, _PRIME + 1}
    for top in (0, 1 << 255)
)


class _Careless:
    """An X25519 private key in plain integers, without the check for zero. RFC 7748, section 5."""

    def __init__(self, secret: bytes) -> None:
        self._scalar = (int.from_bytes(secret, "little") & ~7 & ((1 << 255) - 1)) | (1 << 254)

    def exchange(self, public: Any) -> bytes:
        """The shared secret, whatever it is."""
        u = (int.from_bytes(public.public_bytes_raw(), "little") & ((1 << 255) - 1)) % _PRIME
        x2, z2, x3, z3 = 1, 0, u, 1
        for bit in range(254, -1, -1):
            swap = self._scalar >> bit & 1
            if swap:
                x2, x3, z2, z3 = x3, x2, z3, z2
            a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
            e = a * a - b * b
            x3, z3 = (d * a + c * b) ** 2 % _PRIME, u * (d * a - c * b) ** 2 % _PRIME
            x2, z2 = a * a * b * b % _PRIME, e * (a * a + 121665 * e) % _PRIME
            if swap:
                x2, x3, z2, z3 = x3, x2, z3, z2
        return (x2 * pow(z2, _PRIME - 2, _PRIME) % _PRIME).to_bytes(32, "little")


@pytest.mark.parametrize("point", LOW_ORDER, ids=lambda point: point.hex()[:8] + point.hex()[-2:])
def test_a_key_of_low_order_is_refused(point: bytes, weakened: Any) -> None:
    """Such a key gives zero with every secret, so without our check anybody could compute the pair's key."""
    honest, careless = _private("honest"), _Careless(hashlib.sha256(b"honest").digest())
    seen = hashlib.sha256(b"transcript").digest()

    for private in (honest, careless):  # the library's own check, and ours behind it
        with pytest.raises(MaskingRefused) as refused:
            pair_key(private, point, seen, own="a", peer="b")  # type: ignore[arg-type]
        assert refused.value.reason is Reason.LOW_ORDER_KEY

    with weakened([module], Reason.LOW_ORDER_KEY):
        fooled = pair_key(careless, point, seen, own="a", peer="b")  # type: ignore[arg-type]
    assert fooled == expand(hmac.digest(seen, bytes(32), "sha256"), pack("pair", "a", "b"))


def test_the_plain_exchange_is_the_librarys() -> None:
    """The careless key of the test above computes X25519 otherwise correctly."""
    other = _private("other")

    careless = _Careless(hashlib.sha256(b"honest").digest()).exchange(other.public_key())

    assert careless == _private("honest").exchange(other.public_key())
