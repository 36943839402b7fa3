"""Masks cancel exactly, hide one vector completely, and fail clearly if sites disagree."""

from __future__ import annotations

import hashlib
import pickle
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.masking.mask_stream import BLOCK_PARAMETERS, Masker, round_context
from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.numbers.chunk_layout import CHUNK_PARAMETERS, Layout
from tests.protos.masking.whole_vectors import mask_whole

SITES = tuple(f"site-{index:02d}" for index in range(6))
CONTEXT = hashlib.sha256(b"context").digest()
EDGES = [
    *(0, 1, 2, 3, 17),
    *(BLOCK_PARAMETERS + offset for offset in (-1, 0, 1)),
    *(CHUNK_PARAMETERS + offset for offset in (-1, 0, 1)),
    2 * CHUNK_PARAMETERS + BLOCK_PARAMETERS + 5,
]


def _pair(one: str, two: str) -> bytes:
    return hashlib.sha256(f"{min(one, two)}|{max(one, two)}".encode()).digest()


def _masker(own: str, sites: tuple[str, ...], layout: Layout, context: bytes = CONTEXT) -> Masker:
    keys = {peer: _pair(own, peer) for peer in sites if peer != own}
    return Masker(own=own, contributors=sites, pair_keys=keys, context=context, layout=layout)


def _vector(layout: Layout, updates: npt.NDArray[np.int32], scalars: npt.NDArray[np.int64]) -> bytearray:
    buffer = bytearray(layout.total_bytes)
    for index in range(layout.chunks):
        body = layout.body(buffer, index)
        words = layout.words(body, index)
        words[0] = 1
        words[1:] = scalars[: words.size - 1]
        layout.updates(body, index)[:] = updates[layout.updates_slice(index)]
    return buffer


def _random_vector(layout: Layout, generator: np.random.Generator) -> bytearray:
    updates = generator.integers(-(2**31), 2**31, layout.parameters, dtype=np.int64).astype(np.int32)
    return _vector(layout, updates, generator.integers(-(2**62), 2**62, layout.scalars, dtype=np.int64))


def _sum(layout: Layout, vectors: list[bytearray]) -> bytearray:
    """The coordinator's only act, written out plainly."""
    total = bytearray(layout.total_bytes)
    for vector, index in product(vectors, range(layout.chunks)):
        into, body = layout.body(total, index), layout.body(vector, index)
        words, updates = layout.words(into, index), layout.updates(into, index)
        words += layout.words(body, index)
        updates += layout.updates(body, index)
    return total


def _checks(layout: Layout, total: bytearray) -> list[int]:
    return [int(layout.words(layout.body(total, index), index)[0]) for index in range(layout.chunks)]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    parameters=st.one_of(st.sampled_from(EDGES), st.integers(0, 3000)),
    scalars=st.sampled_from([0, 1, 3, 8191, 8192, 20_000]),
    count=st.integers(2, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_masks_cancel_and_the_sum_is_exact(parameters: int, scalars: int, count: int, seed: int) -> None:
    """For every size and number of sites the masked sum is the plain sum, to the bit, in any order."""
    layout, generator, sites = Layout(parameters, scalars), np.random.default_rng(seed), SITES[:count]
    plain = [_random_vector(layout, generator) for _ in sites]
    masked = [bytearray(vector) for vector in plain]
    for site, vector in zip(sites, masked, strict=True):
        mask_whole(_masker(site, sites, layout), layout, vector)

    assert _sum(layout, masked) == _sum(layout, plain)
    assert _sum(layout, [masked[index] for index in generator.permutation(count)]) == _sum(layout, plain)
    assert _checks(layout, _sum(layout, masked)) == [count] * layout.chunks
    assert all(one != two for one, two in zip(masked, plain, strict=True))


def _excess(counts: npt.NDArray[np.int64]) -> float:
    """Chi-square against the uniform distribution, in standard deviations of chi-square itself."""
    expected, freedom = counts.sum() / counts.size, counts.size - 1
    return float(((counts - expected) ** 2).sum() / expected - freedom) / float(np.sqrt(2 * freedom))


def test_masks_of_different_contexts_are_independent_and_equal_contexts_are_a_two_time_pad() -> None:
    """The difference of two maskings is uniform; under one context it is the vectors' difference, bare."""
    layout, generator = Layout(50_000, 0), np.random.default_rng(2)
    one, two = _random_vector(layout, generator), _random_vector(layout, generator)
    masks = [bytearray(layout.total_bytes) for _ in range(40)]
    for seed, mask in enumerate(masks):
        mask_whole(_masker("site-00", SITES[:3], layout, hashlib.sha256(bytes([seed])).digest()), layout, mask)
    views = [layout.updates(layout.body(mask, 0), 0).view(np.uint32) for mask in masks]

    for before, after in pairwise(views):
        assert abs(_excess(np.bincount((after - before) & 0xFF, minlength=256))) < 5.5

    for vector in (one, two):  # what a site would do that filled a frozen context again
        bare = layout.updates(layout.body(bytearray(vector), 0), 0).copy()
        mask_whole(_masker("site-00", SITES[:3], layout), layout, vector)
        views.append(bare.view(np.uint32))
    masked = [layout.updates(layout.body(vector, 0), 0).view(np.uint32) for vector in (one, two)]
    np.testing.assert_array_equal(masked[0] - masked[1], views[-2] - views[-1])


CONTEXT_FIELDS: dict[str, Any] = {
    "transcript": bytes(32), "position": bytes(31) + b"\x01", "attempt": 0, "contributors": SITES[:3],
    "manifest_digest": bytes(31) + b"\x02", "length_bytes": 4 * 400 + 8, "encoding": b"fixed point",
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("transcript", bytes(31) + b"\x03"), ("position", bytes(32)), ("attempt", 1), ("contributors", SITES[:4]),
        ("manifest_digest", bytes(32)), ("length_bytes", 4 * 400 + 16), ("encoding", b"another scale"),
    ],
)  # fmt: skip
def test_a_site_that_disagrees_on_anything_bound_spoils_the_sum_and_is_noticed(field: str, other: object) -> None:
    """The check words do not add up to the number of sites; with equal contexts they do."""
    layout, right = Layout(400, 0), round_context(**CONTEXT_FIELDS)
    wrong = round_context(**CONTEXT_FIELDS | {field: other})

    def checks(contexts: list[bytes]) -> list[int]:
        vectors = [_random_vector(layout, np.random.default_rng(index)) for index in range(3)]
        for site, vector, context in zip(SITES, vectors, contexts, strict=False):
            mask_whole(_masker(site, SITES[:3], layout, context), layout, vector)
        return _checks(layout, _sum(layout, vectors))

    assert checks([right, right, right]) == [3]
    assert checks([right, wrong, right]) != [3]


def test_a_chunk_is_masked_once() -> None:
    """A second masking, which with the first would give the mask away, is an error of the program."""
    layout = Layout(CHUNK_PARAMETERS + 1, 0)
    buffer, masker = bytearray(layout.total_bytes), _masker("site-00", SITES[:3], layout)
    masker.masked(layout.body(buffer, 0), 0)

    with pytest.raises(ValueError, match="once"):
        masker.masked(layout.body(buffer, 0), 0)
    with pytest.raises(ValueError, match="own length"):
        masker.masked(layout.body(buffer, 0)[:-8], 1)


def test_a_site_alone_or_left_out_masks_nothing() -> None:
    """A single contributor has no masks, so its vector would be sent unmasked: refused, like a set without oneself."""
    layout = Layout(10, 0)

    with pytest.raises(MaskingRefused) as alone:
        _masker("site-00", ("site-00",), layout)
    with pytest.raises(MaskingRefused) as left_out:
        _masker("site-00", ("site-01", "site-02"), layout)

    assert alone.value.reason is left_out.value.reason is Reason.OTHER_SITES


def test_a_masker_has_no_representation_and_no_serial_form() -> None:
    """Round keys are neither printed nor pickled."""
    masker = _masker("site-00", SITES[:3], Layout(10, 0))

    assert repr(masker) == "Masker(hidden)"
    with pytest.raises(TypeError):
        pickle.dumps(masker)
