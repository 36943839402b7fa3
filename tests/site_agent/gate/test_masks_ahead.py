"""Masks that a gate computes before it knows the contributors are used for these contributors only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from host.record_store import Store
from protos.numbers.chunk_layout import CHUNK_PARAMETERS, Layout
from protos.wire.messages import Bind
from site_agent.gate.site_masking import SiteMasking
from tests.for_each import for_each
from tests.rehearsal.gates import keys_of, sealed
from tests.rehearsal.study import plan_with

NAMES = ("a", "b", "c", "d")
POSITION = bytes(range(32))


@pytest.fixture
def masking(tmp_path: Path) -> Iterator[SiteMasking]:
    """The masks of site a, after all sites agreed on keys."""
    keys, identities = keys_of(NAMES)
    plan = plan_with(identities, changes={"masking": {"required": True}})
    stores = {name: Store(tmp_path / name / "gate.sqlite") for name in NAMES}
    yield sealed(plan, keys, stores)
    for store in stores.values():
        store.close()


def bind_of(*sites: str, attempt: int = 0, first_chunk: int = 0) -> Bind:
    """The named contributors of round 3."""
    return Bind(3, attempt, sites, first_chunk)


GUESSES = {
    "right": bind_of("a", "b", "c"),
    "other sites": bind_of(*NAMES),
    "other attempt": bind_of("a", "b", "c", attempt=1),
    "a site without keys": bind_of("a", "b", "x"),
}


@for_each("guess", list(GUESSES))
def test_whatever_was_guessed_the_masks_are_those_of_the_contributors(guess: str, masking: SiteMasking) -> None:
    """A wrong guess is dropped, also if the upload goes on behind its first chunk."""
    for parameters in (10, 20_000, CHUNK_PARAMETERS + 3):
        layout, bind = Layout(parameters, 2), bind_of("a", "b", "c")
        vector = memoryview(bytes(layout.total_bytes))
        expected = [bytes(body) for body in masking.masked(POSITION, bind, layout, vector)]
        for first in range(layout.chunks):
            masking.prepare(POSITION, GUESSES[guess], layout)
            later = bind_of("a", "b", "c", first_chunk=first)
            assert [bytes(body) for body in masking.masked(POSITION, later, layout, vector)] == expected[first:]
        masking.prepare(POSITION, bind, Layout(parameters + 2, 1))
        assert [bytes(body) for body in masking.masked(POSITION, bind, layout, vector)] == expected
