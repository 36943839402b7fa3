"""The messages of a site look like noise, whatever it trained: the real agent's chunks, byte by byte.

Each statistic is chi-square over all bytes or bits of many runs; the same change unmasked fails every
one of them by orders of magnitude, so the tests can fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from protos.plan.plan import Plan
from tests.federation import MadeUpTrainer, Site, Vector, masked_plan
from tests.hostile.attacks_on_sets import without_company
from tests.hostile.masking_coordinator import agree, ask_for, enter
from tests.rehearsal.made_up_time import play

RUNS = 12
PARAMETERS = 20_000
Bytes = npt.NDArray[np.uint8]

TRAINED: dict[str, Callable[[str, int, int, Vector], Vector]] = {
    "nothing": lambda site, number, parameters: np.zeros_like(parameters),
    "the bound": lambda site, number, parameters: np.full_like(parameters, 8.0),
    "small": lambda site, number, parameters: np.full_like(parameters, -1e-6),
}


def deviations(counts: npt.NDArray[np.int64]) -> float:
    """How far counts are from equal, in standard deviations of chi-square."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def statistics(body: Bytes) -> dict[str, float]:
    """Bytes at each place of a word, the lowest and highest bits, and neighbours."""
    words = body[: body.size // 4 * 4].reshape(-1, 4)
    found = {f"byte {place}": deviations(np.bincount(words[:, place], minlength=256)) for place in range(4)}
    found["low bits"] = deviations(np.bincount(words[:, 0] & 7, minlength=8))
    found["high bits"] = deviations(np.bincount(words[:, 3] >> 5, minlength=8))
    pairs = (words[:-1, 3] >> 4).astype(np.int64) * 16 + (words[1:, 3] >> 4)
    found["neighbours"] = deviations(np.bincount(pairs, minlength=256))
    return found


def sent(directory: Path, plan: Plan, changes: Callable[[str, int, int, Vector], Vector], runs: int) -> Bytes:
    """All bytes of a's uploads over several runs, each with keys of its own."""
    bodies: list[bytes] = []

    async def scene() -> None:
        for run in range(runs):
            sites = [
                Site(name, plan, directory / f"{run}{name}", trainer=MadeUpTrainer(name, changes))
                for name in plan.site_names
            ]
            await enter(sites)
            await agree(sites)
            bodies.extend(bytes(chunk.body)[8:] for chunk in await ask_for(sites[0], 0, 0, plan.site_names))
            for site in sites:
                await site.stop()

    play(scene())
    return np.frombuffer(b"".join(bodies), np.uint8)


@pytest.mark.parametrize("name", TRAINED)
def test_what_a_site_sends_is_uniform(tmp_path: Path, name: str) -> None:
    """No statistic of a's uploads leaves six standard deviations, whatever a trained."""
    body = sent(tmp_path, masked_plan("abc", parameters=PARAMETERS), TRAINED[name], RUNS)

    assert body.size == RUNS * 4 * PARAMETERS
    far = {key: value for key, value in statistics(body).items() if abs(value) > 6}
    assert far == {}


@pytest.mark.parametrize("name", TRAINED)
def test_the_same_change_without_masks_is_noticed(tmp_path: Path, name: str) -> None:
    """A site that masks for nobody but itself, where nothing stops it, fails every statistic."""
    plan = masked_plan("abc", parameters=PARAMETERS)
    bodies: list[bytes] = []

    async def scene() -> None:
        trainer = MadeUpTrainer("a", TRAINED[name])
        site = Site("a", plan, tmp_path, trainer=trainer)
        await enter([site])
        await agree([site])
        bodies.extend(bytes(chunk.body)[8:] for chunk in await ask_for(site, 0, 0, "a"))

    with without_company():
        play(scene())

    assert min(statistics(np.frombuffer(b"".join(bodies), np.uint8)).values()) > 100


def test_the_same_step_for_the_same_set_is_masked_with_other_masks(tmp_path: Path) -> None:
    """A repeated attempt sends other bytes: their difference is as uniform as each of them."""
    plan = masked_plan("abc", parameters=PARAMETERS * 4)
    uploads: list[bytes] = []

    async def scene() -> None:
        sites = [Site(name, plan, tmp_path / name) for name in plan.site_names]
        await enter(sites)
        await agree(sites)
        for attempt in range(2):
            uploads.append(b"".join(bytes(c.body)[8:] for c in await ask_for(sites[0], 0, attempt, "abc")))

    play(scene())
    first, second = (np.frombuffer(upload, np.uint32) for upload in uploads)
    far = {key: value for key, value in statistics((first - second).view(np.uint8)).items() if abs(value) > 6}
    assert far == {}
