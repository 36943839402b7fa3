"""Parameters that sites receive: chunks, their digest, and their position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from blake3 import blake3

from protos.wire.messages import Offer, Stage
from protos.wire.positions import down_chunks, down_slice, parameters_digest, position
from tests.for_each import for_each


@for_each("seed", range(20))
def test_the_digest_is_of_the_little_endian_bytes(seed: int) -> None:
    """BLAKE3 over all chunks in order is the digest, so it can be computed while they arrive."""
    vector = np.random.default_rng(seed).standard_normal(seed * 977).astype(np.float32)
    hasher = blake3()

    for index in range(down_chunks(vector.size)):
        hasher.update(vector[down_slice(index)].astype("<f4").tobytes())

    assert parameters_digest(vector) == hasher.digest()


@for_each("seed", range(20))
def test_one_changed_bit_changes_the_digest(seed: int) -> None:
    """A single flipped bit anywhere, even the sign of a zero, is seen."""
    generator = np.random.default_rng(seed)
    vector = np.zeros(1000, np.float32)
    before = parameters_digest(vector)

    vector.view(np.uint32)[generator.integers(1000)] ^= np.uint32(1 << generator.integers(32))

    assert parameters_digest(vector) != before


OFFER = Offer(3, 0, b"d" * 32, Stage.TRAINING, b"\x01", 1)
OTHER_OFFERS = {
    "round": replace(OFFER, round=4),
    "bytes sent down": replace(OFFER, parameters_digest=b"e" * 32),
    "stage": replace(OFFER, stage=Stage.VALIDATION),
    "layers": replace(OFFER, layers=b"\x03"),
    "all layers": replace(OFFER, layers=b""),
    "best round": replace(OFFER, best_round=0),
    "no best round": replace(OFFER, best_round=None),
}


@pytest.mark.parametrize("name", OTHER_OFFERS)
def test_a_position_names_all_that_an_answer_depends_on(name: str) -> None:
    """Another round, digest, stage, choice of layers or best round is another position."""
    assert len(position("run", OFFER)) == 32
    assert position("run", OTHER_OFFERS[name]) != position("run", OFFER)


def test_a_position_is_of_one_run_and_of_all_attempts() -> None:
    """Another run is another position; another attempt at the same step is not."""
    assert position("run2", OFFER) != position("run", OFFER)
    assert position("run", replace(OFFER, attempt=7)) == position("run", OFFER)
