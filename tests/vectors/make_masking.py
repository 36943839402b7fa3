"""Write tests/vectors/masking.json: `python tests/vectors/make_masking.py`, from the repository's root. Everything
follows from the private keys and nonces below, which are the SHA-256 of short texts, so the file never changes unless
the protocol does. All bytes are hexadecimal; `exchange_private` and `identity_private` are raw keys (RFC 7748, RFC
8032)."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from protos.fingerprints import fingerprint
from protos.masking.key_session import KeySessionSecret, KeySessionTerms, acknowledge, make_advert, transcript
from protos.masking.mask_stream import Masker, counter_block, encoding_name, round_context, round_key
from protos.numbers.chunk_layout import Layout
from protos.numbers.fixed_point import FixedPoint

PATH = Path(__file__).with_name("masking.json")
SITES = ("site-a", "site-b", "site-c")
CLIPPING_RANGE = 8.0
FIRST_MASK_BYTES = 96
UPDATES = ([1.0, -1.0, 0.5, 8.0, -8.0], [0.25, 0.125, -3.75, 8.0, -8.0], [1e-6, 2.0, 3.25, 8.0, -8.0])
SCALARS = ([120, -5], [88, 7], [1 << 40, -(1 << 40)])


def _bytes(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def make() -> dict[str, Any]:
    """Every intermediate value of one key session and one round of three sites."""
    identities = {site: Ed25519PrivateKey.from_private_bytes(_bytes(f"identity {site}")) for site in SITES}
    exchange = {site: X25519PrivateKey.from_private_bytes(_bytes(f"exchange {site}")) for site in SITES}
    public = {site: key.public_key().public_bytes_raw() for site, key in identities.items()}
    terms = KeySessionTerms(
        run="run-1",
        key_session=1,
        plan_digest=_bytes("plan"),
        candidates=SITES,
        identities=tuple((site, fingerprint(public[site])) for site in SITES),
    )
    secrets = {site: KeySessionSecret(exchange[site], _bytes(f"nonce {site}")) for site in SITES}
    roster = [make_advert(secrets[site], terms, site, public[site], identities[site].sign) for site in SITES]
    seen = transcript(terms, roster)
    for site in SITES:
        secrets[site].agree(site, roster, seen)
    pairs = [_pair(one, two, exchange, secrets, seen) for one in SITES for two in SITES if one < two]
    sites = [
        {
            "site": advert.site,
            "identity_private": identities[advert.site].private_bytes_raw().hex(),
            "identity_public": advert.identity_key.hex(),
            "fingerprint": fingerprint(advert.identity_key),
            "exchange_private": exchange[advert.site].private_bytes_raw().hex(),
            "exchange_public": advert.exchange_key.hex(),
            "nonce": advert.nonce.hex(),
            "advert_signature": advert.signature.hex(),
            "acknowledgement_signature": acknowledge(
                terms, advert.site, seen, identities[advert.site].sign
            ).signature.hex(),
        }
        for advert in roster
    ]
    key_session = {
        "run": terms.run,
        "key_session": terms.key_session,
        "plan_digest": terms.plan_digest.hex(),
        "transcript": seen.hex(),
    }
    return {"key_session": key_session, "sites": sites, "pairs": pairs, "round": _round(seen, secrets)}


def _pair(
    one: str, two: str, exchange: dict[str, X25519PrivateKey], secrets: dict[str, KeySessionSecret], seen: bytes
) -> dict[str, str]:
    shared = exchange[one].exchange(X25519PublicKey.from_public_bytes(exchange[two].public_key().public_bytes_raw()))
    return {
        "lower": one,
        "higher": two,
        "shared_secret": shared.hex(),
        "extracted": hmac.digest(seen, shared, "sha256").hex(),
        "pair_key": secrets[one].pair_keys[two].hex(),
    }


def _round(seen: bytes, secrets: dict[str, KeySessionSecret]) -> dict[str, Any]:
    code, layout = FixedPoint(CLIPPING_RANGE, len(SITES)), Layout(len(UPDATES[0]), len(SCALARS[0]))
    encoding = encoding_name(CLIPPING_RANGE, len(SITES), 32)
    bound = {"position": _bytes("position"), "manifest_digest": _bytes("manifest"), "encoding": encoding}
    numbers = {"attempt": 2, "length_bytes": layout.total_bytes}
    context = round_context(transcript=seen, contributors=SITES, **numbers, **bound)
    return {
        **numbers,
        **{name: value.hex() for name, value in bound.items()},
        "context": context.hex(),
        "clipping_range": CLIPPING_RANGE,
        "scale": code.scale,
        "changes": UPDATES,
        "scalars": SCALARS,
        "masks": _masks(context, code, layout, secrets),
    }


def _masks(context: bytes, code: FixedPoint, layout: Layout, secrets: dict[str, KeySessionSecret]) -> dict[str, Any]:
    keys = {
        f"{one} {two}": round_key(secrets[one].pair_keys[two], context) for one in SITES for two in SITES if one < two
    }
    encoded, masked = {}, {}
    for site, updates, scalars in zip(SITES, UPDATES, SCALARS, strict=True):
        buffer = bytearray(layout.total_bytes)
        body = layout.body(buffer, 0)
        layout.words(body, 0)[:] = [1, *scalars]
        code.encode(np.array(updates, np.float32), 1.0, layout.updates(body, 0))
        encoded[site] = buffer.hex()
        pair_keys = secrets[site].pair_keys
        masker = Masker(own=site, contributors=SITES, pair_keys=pair_keys, context=context, layout=layout)
        body[:] = masker.masked(body, 0)
        masked[site] = buffer.hex()
    total = bytearray(layout.total_bytes)
    into = layout.body(total, 0)
    layout.words(into, 0)[:] = [3, *np.sum(SCALARS, axis=0)]
    layout.updates(into, 0)[:] = sum(np.frombuffer(bytes.fromhex(one), "<i4", offset=24) for one in encoded.values())
    return {
        "cipher": "aes-256-ctr",
        "round_keys": {pair: key.hex() for pair, key in keys.items()},
        "counter_block_of_chunk_3": counter_block(3).hex(),
        "first_mask_bytes": {
            pair: {str(chunk): _keystream(key, chunk).hex() for chunk in (0, 3)} for pair, key in keys.items()
        },
        "encoded": encoded,
        "masked": masked,
        "sum": total.hex(),
    }


def _keystream(key: bytes, chunk: int) -> bytes:
    cipher = Cipher(algorithms.AES256(key), modes.CTR(counter_block(chunk)))
    return cipher.encryptor().update(bytes(FIRST_MASK_BYTES))


if __name__ == "__main__":
    PATH.write_text(json.dumps(make(), indent=1) + "\n")
