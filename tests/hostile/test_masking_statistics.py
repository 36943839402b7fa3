"""The messages of a site look like noise, whatever it trained: the real agent's chunks, byte by byte. The statistic is
chi-square over the bytes at each place of a word. The same change unmasked fails it by orders of magnitude, so the test
can fail."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.federation import MadeUpTrainer, Site, masked_plan
from tests.hostile.attacks_on_sets import without_company
from tests.hostile.masking_coordinator import agree, ask_for, enter
from tests.rehearsal.made_up_time import play

PARAMETERS = 100_000


def deviations(words: npt.NDArray[np.uint8]) -> list[float]:
    """How far the counts of bytes at each place are from equal, in standard deviations of chi-square."""
    counts = np.stack([np.bincount(place, minlength=256) for place in words.T])
    expected = len(words) / 256
    return ((((counts - expected) ** 2 / expected).sum(axis=1) - 255) / math.sqrt(2 * 255)).tolist()


@pytest.mark.parametrize("value", [0.0, 8.0, -1e-6])
@pytest.mark.parametrize("is_masked", [True, False])
def test_what_a_site_sends_is_uniform(tmp_path: Path, value: float, *, is_masked: bool) -> None:
    """Two attempts and their difference are as uniform as each other. Without any other site nothing is masked."""
    plan, uploads = masked_plan("abc", parameters=PARAMETERS), list[npt.NDArray[np.uint32]]()
    names = "abc" if is_masked else "a"

    async def scene() -> None:
        trainers = {name: MadeUpTrainer(name, lambda *given: np.full_like(given[-1], value)) for name in names}
        sites = [Site(name, plan, tmp_path / name, trainer=trainers[name]) for name in names]
        await enter(sites)
        await agree(sites)
        for attempt in range(2 if is_masked else 1):
            chunks = await ask_for(sites[0], 0, attempt, names)
            uploads.append(np.frombuffer(b"".join(bytes(chunk.body)[8:] for chunk in chunks), np.uint32))

    with nullcontext() if is_masked else without_company():
        play(scene())

    found = [deviations(one.view(np.uint8).reshape(-1, 4)) for one in (*uploads, uploads[0] - uploads[-1])]
    if is_masked:
        assert max(map(max, found)) < 6.0
    else:
        assert min(found[0]) > 100.0
