"""The test vectors, recomputed by an implementation that shares no code with ours. Plain integers for curve, ciphers
and sums, `hmac` and `hashlib` for key derivation; Ed25519 alone comes from the library. Sources: RFC 7748, RFC 5869,
FIPS 197, SP 800-38A, RFC 8439."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import runpy
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

VECTORS = Path(__file__).parents[2] / "vectors"
KNOWN: dict[str, Any] = json.loads((VECTORS / "masking.json").read_text())
PRIME = 2**255 - 19


def _hex(text: str) -> bytes:
    return bytes.fromhex(text)


def _pack(*fields: bytes | str | int) -> bytes:
    out = b""
    for field in ("global-layers/1", *fields):
        if isinstance(field, int):
            raw = field.to_bytes(8, "little", signed=True)
        else:
            raw = field.encode() if isinstance(field, str) else field
        out += len(raw).to_bytes(8, "little") + raw
    return out


def _x25519(secret: bytes, point: bytes) -> bytes:
    """The Montgomery ladder in plain integers, with projective doubling and differential addition."""
    scalar = (int.from_bytes(secret, "little") & ~7 & ((1 << 255) - 1)) | (1 << 254)
    x1, x2, z2, x3, z3 = int.from_bytes(point, "little") % PRIME, 1, 0, int.from_bytes(point, "little") % PRIME, 1
    for bit in f"{scalar:0255b}":
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
        double_x, double_z = (x2 * x2 - z2 * z2) ** 2, 4 * x2 * z2 * (x2 * x2 + 486662 * x2 * z2 + z2 * z2)
        sum_x, sum_z = (x2 * x3 - z2 * z3) ** 2, x1 * (x2 * z3 - z2 * x3) ** 2
        x2, z2, x3, z3 = double_x % PRIME, double_z % PRIME, sum_x % PRIME, sum_z % PRIME
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


def _double(value: int) -> int:
    return (value << 1 ^ 0x11B if value & 0x80 else value << 1) & 0xFF


def _times(one: int, two: int) -> int:
    product = 0
    while two:
        product ^= one if two & 1 else 0
        one, two = _double(one), two >> 1
    return product


def _substitution() -> list[int]:
    table = []
    for value in range(256):
        inverse = next((other for other in range(256) if _times(value, other) == 1), 0)
        rotated = [(inverse << turn | inverse >> (8 - turn)) & 0xFF for turn in range(5)]
        table.append(rotated[0] ^ rotated[1] ^ rotated[2] ^ rotated[3] ^ rotated[4] ^ 0x63)
    return table


S_BOX = _substitution()


def _aes_256(key: bytes, block: bytes) -> bytes:
    words = [list(key[start : start + 4]) for start in range(0, 32, 4)]
    constant = 1
    for index in range(8, 60):
        word = words[-1]
        if index % 8 == 0:
            word = [S_BOX[byte] for byte in word[1:] + word[:1]]
            word[0], constant = word[0] ^ constant, _double(constant)
        elif index % 8 == 4:
            word = [S_BOX[byte] for byte in word]
        words.append([one ^ two for one, two in zip(word, words[-8], strict=True)])
    keys = [[byte for word in words[start : start + 4] for byte in word] for start in range(0, 60, 4)]
    state = [one ^ two for one, two in zip(block, keys[0], strict=True)]
    for number, round_key in enumerate(keys[1:], start=1):
        state = [S_BOX[state[(index + 4 * (index % 4)) % 16]] for index in range(16)]
        if number < 14:
            state = [
                _double(state[index])
                ^ _double(state[index // 4 * 4 + (index + 1) % 4])
                ^ state[index // 4 * 4 + (index + 1) % 4]
                ^ state[index // 4 * 4 + (index + 2) % 4]
                ^ state[index // 4 * 4 + (index + 3) % 4]
                for index in range(16)
            ]
        state = [one ^ two for one, two in zip(state, round_key, strict=True)]
    return bytes(state)


def _keystream(key: bytes, chunk: int, size: int) -> bytes:
    out, block = b"", 0
    while len(out) < size:
        out += _aes_256(key, struct.pack(">QQ", chunk, block))
        block += 1
    return out[:size]


def _numbers(raw: bytes, words: int) -> list[int]:
    """A chunk's numbers, unsigned: `words` of 64 bits, then 32 bits each."""
    return [
        *struct.unpack_from(f"<{words}Q", raw),
        *struct.unpack_from(f"<{(len(raw) - 8 * words) // 4}I", raw, 8 * words),
    ]


def _wrap(numbers: list[int], words: int) -> list[int]:
    return [number % 2 ** (64 if index < words else 32) for index, number in enumerate(numbers)]


def test_the_independent_cipher_is_right() -> None:
    """FIPS 197, C.3 as published."""
    key = bytes(range(32))

    assert _aes_256(key, _hex("00112233445566778899aabbccddeeff")) == _hex("8ea2b7ca516745bfeafc49904b496089")


@pytest.mark.parametrize("site", KNOWN["sites"], ids=lambda site: site["site"])
def test_keys_fingerprints_and_signatures(site: dict[str, str]) -> None:
    """Public keys follow from private ones; adverts and acknowledgements are signed over the packed fields."""
    key_session, identity = KNOWN["key_session"], Ed25519PrivateKey.from_private_bytes(_hex(site["identity_private"]))
    terms = (key_session["run"], key_session["key_session"], _hex(key_session["plan_digest"]))
    exchange, nonce = _hex(site["exchange_public"]), _hex(site["nonce"])
    spelt = base64.b32encode(hashlib.sha256(_hex(site["identity_public"])).digest()[:20]).decode().lower()

    advert = identity.sign(_pack("masking advert", *terms, site["site"], exchange, nonce))
    acknowledgement = identity.sign(
        _pack("masking acknowledgement", *terms, site["site"], _hex(key_session["transcript"]))
    )

    assert identity.public_key().public_bytes_raw() == _hex(site["identity_public"])
    assert spelt == site["fingerprint"].replace("-", "")
    assert _x25519(_hex(site["exchange_private"]), (9).to_bytes(32, "little")) == exchange
    assert advert.hex() == site["advert_signature"]
    assert acknowledgement.hex() == site["acknowledgement_signature"]


def test_the_transcript() -> None:
    """T over run, key session, plan, candidates and every advert whole."""
    key_session, sites = KNOWN["key_session"], KNOWN["sites"]
    fields = ("exchange_public", "nonce", "identity_public", "advert_signature")
    entries = [
        _pack(
            "masking roster entry", site["site"], key_session["key_session"], *(_hex(site[field]) for field in fields)
        )
        for site in sites
    ]
    candidates = _pack("masking candidates", *(site["site"] for site in sites))
    plan = _hex(key_session["plan_digest"])

    whole = _pack("masking transcript", key_session["run"], key_session["key_session"], plan, candidates, *entries)

    assert hashlib.sha256(whole).hexdigest() == key_session["transcript"]


@pytest.mark.parametrize("pair", KNOWN["pairs"], ids=lambda pair: f"{pair['lower']} {pair['higher']}")
def test_pair_keys(pair: dict[str, str]) -> None:
    """Shared secret, extraction with T as salt, expansion with both names."""
    sites = {site["site"]: site for site in KNOWN["sites"]}
    lower, higher = sites[pair["lower"]], sites[pair["higher"]]

    shared = _x25519(_hex(lower["exchange_private"]), _hex(higher["exchange_public"]))
    extracted = hmac.new(_hex(KNOWN["key_session"]["transcript"]), shared, "sha256").digest()
    pair_key = hmac.new(extracted, _pack("pair", pair["lower"], pair["higher"]) + b"\x01", "sha256").hexdigest()

    assert shared == _x25519(_hex(higher["exchange_private"]), _hex(lower["exchange_public"]))
    assert (shared.hex(), extracted.hex(), pair_key) == (pair["shared_secret"], pair["extracted"], pair["pair_key"])


def test_the_context() -> None:
    """Every bound field with its length, in order."""
    bound, sites = KNOWN["round"], [site["site"] for site in KNOWN["sites"]]
    encoding = _pack(
        "masking encoding", "fixed point modulo 2**32 and 2**64", bound["clipping_range"].hex(), len(sites)
    )

    whole = _pack(
        "masking context",
        _hex(KNOWN["key_session"]["transcript"]),
        _hex(bound["position"]),
        bound["attempt"],
        _pack("masking contributors", *sites),
        _hex(bound["manifest_digest"]),
        bound["length_bytes"],
        encoding,
    )

    assert encoding.hex() == bound["encoding"]
    assert hashlib.sha256(whole).hexdigest() == bound["context"]


def test_masks_masked_vectors_and_sums() -> None:
    """Keys, keystreams, encoded values, masked values and their sum, number by number."""
    bound, sites = KNOWN["round"], [site["site"] for site in KNOWN["sites"]]
    words, masks, known_masks = 1 + len(bound["scalars"][0]), {}, bound["masks"]
    for pair in KNOWN["pairs"]:
        name = f"{pair['lower']} {pair['higher']}"
        information = _pack("round", _hex(bound["context"]), known_masks["cipher"])
        key = hmac.new(_hex(pair["pair_key"]), information + b"\x01", "sha256").digest()
        assert key.hex() == known_masks["round_keys"][name]
        for chunk, known in known_masks["first_mask_bytes"][name].items():
            assert _keystream(key, int(chunk), len(known) // 2).hex() == known
        masks[name] = _numbers(_keystream(key, 0, bound["length_bytes"]), words)
    total = [0] * (words + len(bound["changes"][0]))
    for own, changes, scalars in zip(sites, bound["changes"], bound["scalars"], strict=True):
        numbers = [1, *scalars, *(round(change * bound["scale"]) for change in changes)]
        assert _wrap(numbers, words) == _numbers(_hex(known_masks["encoded"][own]), words)
        for name, mask in masks.items():
            sign = {name.split()[0]: 1, name.split()[1]: -1}.get(own, 0)
            numbers = [number + sign * share for number, share in zip(numbers, mask, strict=True)]
        assert _wrap(numbers, words) == _numbers(_hex(known_masks["masked"][own]), words)
        total = [one + two for one, two in zip(total, numbers, strict=True)]

    assert _wrap(total, words) == _numbers(_hex(known_masks["sum"]), words)
    assert total[0] == len(sites)


def test_the_file_is_what_our_code_makes() -> None:
    """The generator writes this very file."""
    made = runpy.run_path(str(VECTORS / "make_masking.py"))["make"]()

    assert json.loads(json.dumps(made)) == KNOWN
