"""Computes the initial values of tensors. The initial values are the same on every computer.

The values depend on a seed (the plan's or a site's secret) and the tensor's name. Coordinator and sites compute the
shared values separately and must get the same bits. The random generators of numerical libraries do not promise that
between kinds of CPU. The rules:

* only integer arithmetic, one AES-256 keystream and one rounding to float32 are used;
* a tensor's values depend on the seed or secret and on its own name, shape and range, but on no other tensor;
* values from the plan's seed are public. Values that stay at a site come from its secret, with another label.
"""

from __future__ import annotations

import hashlib
from typing import assert_never

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from protos.plan.architecture import Constant, FromFile, TensorSpec, Uniform

_LABEL = b"global-layers initial values 1"
_SECRET_LABEL = b"global-layers secret values 1"
_WORDS_AT_ONCE = 2**20


def initial_values(spec: TensorSpec, seed: int) -> NDArray[np.float32]:
    """Return the initial values of a tensor, derived from the plan's seed.

    Source: docs/contributor.md, "The protocol". The keystream is AES-256-CTR from counter 0. Each little-endian
    32-bit word w gives the integer w >> 8 of 24 bits. The value is (w >> 8) / 2**23 - 1 times the bound, which is
    itself rounded to float32.

    Args:
        seed: the plan's seed, from 0 to 2**64 - 1.

    Returns:
        float32 array of shape `spec.shape`, a new one, in C order.

    Raises:
        ValueError: the seed does not fit 64 unsigned bits, or the plan's starting file was not read.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"a seed lies between 0 and 2**64 - 1, not {seed}")
    return _values(spec, _key(_LABEL, seed.to_bytes(8, "big"), spec.name))


def secret_values(spec: TensorSpec, secret: bytes) -> NDArray[np.float32]:
    """Derive the initial values of a private tensor from a site's secret, with the formula of `initial_values`.

    Args:
        secret: 32 bytes that only this site has.

    Returns:
        float32 array of shape `spec.shape`, a new one, in C order.

    Raises:
        ValueError: the secret does not have 32 bytes.
    """
    if len(secret) != 32:
        raise ValueError(f"a secret has 32 bytes, not {len(secret)}")
    return _values(spec, _key(_SECRET_LABEL, secret, spec.name))


def _values(spec: TensorSpec, key: bytes) -> NDArray[np.float32]:
    match spec.initial:
        case Constant(value=value):
            return np.full(spec.shape, value, dtype=np.float32)
        case Uniform(bound=bound):
            return _uniform(key, spec.number_count, bound).reshape(spec.shape)
        case FromFile(values=values):
            if values is None:
                raise ValueError(f"{spec.name} starts from the plan's starting file, which was not read")
            return values.copy()
        case _:
            assert_never(spec.initial)


def _uniform(key: bytes, count: int, bound: float) -> NDArray[np.float32]:
    # The zero counter is safe, because the key is used only for this tensor.
    keystream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    scale = float(np.float32(bound))
    values = np.empty(count, dtype=np.float32)
    for start in range(0, count, _WORDS_AT_ONCE):
        block = values[start : start + _WORDS_AT_ONCE]
        words = np.frombuffer(keystream.update(bytes(4 * block.size)), dtype="<u4")
        # A 24-bit integer times a 24-bit float is exact in float64. So the last rounding is the only one, and the value
        # stays below the bound.
        centred = (words >> np.uint32(8)).astype(np.float64) - 2.0**23
        block[:] = centred * (scale * 2.0**-23)
    return values


def _key(label: bytes, origin: bytes, name: str) -> bytes:
    digest = hashlib.sha256()
    for field in (label, origin, name.encode("ascii")):
        digest.update(len(field).to_bytes(4, "big"))
        digest.update(field)
    return digest.digest()
