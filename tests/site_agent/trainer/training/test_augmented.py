"""Augmented images: the possible changes, their seeds, and the parts that never change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from protos.plan.augmentation import Flip, ImageSize, Shift
from protos.plan.learning_rates import ConstantRate
from site_agent.trainer.site_network import Seeds, _augmenting
from site_agent.trainer.training.batches import Augmenting, Batches, Rows
from site_agent.trainer.training.flat_network import FlatNetwork
from site_agent.trainer.training.local import LocalTraining, Pace
from site_agent.trainer.training.procedures import Phase
from tests.mask_images import U_NET
from tests.site_agent.trainer.sites import make_plan

SIZE = ImageSize(height=4, width=6, channels=3)
ROWS = torch.arange(4000)
IMAGES = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 72)).astype(np.float32)).expand(4000, 72)
BOTH = (Flip(name="flip"), Shift(name="shift", pixels=2))


def augmenting(*steps: Flip | Shift, seeds: tuple[int, ...] = (7,)) -> Augmenting:
    """These steps on images of 4 by 6 in colour."""
    return Augmenting(image=SIZE, steps=steps, seeds=seeds)


@pytest.mark.parametrize(("direction", "axis"), [("across", 3), ("down", 2)])
@pytest.mark.parametrize("seed", range(3))
def test_half_of_the_images_are_mirrored(direction: Any, axis: int, seed: int) -> None:
    """Each image is as it was or its mirror image, all channels alike, in equal shares."""
    found = augmenting(Flip(name="flip", direction=direction), seeds=(seed,)).applied(IMAGES, ROWS, epoch=0)

    plain = IMAGES.reshape(-1, 3, 4, 6)
    is_same = (found.reshape(-1, 3, 4, 6) == plain).flatten(1).all(1)
    is_turned = (found.reshape(-1, 3, 4, 6) == plain.flip(axis)).flatten(1).all(1)
    assert (is_same ^ is_turned).all()
    assert abs(is_turned.float().mean() - 0.5) < 0.04


@pytest.mark.parametrize("seed", range(3))
def test_each_way_of_moving_is_equally_likely_and_leaves_the_mean(seed: int) -> None:
    """With two pixels there are 25 ways, found by hand; free pixels are 0, the mean of standardised images."""
    found = augmenting(Shift(name="shift", pixels=2), seeds=(seed,)).applied(IMAGES, ROWS, epoch=0)

    image = np.pad(IMAGES[0].numpy().reshape(3, 4, 6), ((0, 0), (2, 2), (2, 2)))
    ways = np.stack([image[:, y : y + 4, x : x + 6].reshape(-1) for y in range(5) for x in range(5)])
    counts = (found.numpy()[:, None] == ways).all(axis=2).sum(axis=0)
    assert counts.sum() == len(ROWS)
    assert (abs(counts - len(ROWS) / 25) < 5 * np.sqrt(len(ROWS) / 25)).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_change_follows_from_seed_epoch_and_row_alone(seed: int) -> None:
    """The order of rows, their neighbours and a stack change nothing; another epoch or seed does."""
    steps, order = augmenting(*BOTH, seeds=(seed,)), torch.randperm(4000, generator=torch.Generator().manual_seed(seed))
    all_at_once = steps.applied(IMAGES, ROWS, epoch=3)

    some = order[:50]
    stack = augmenting(*BOTH, seeds=(seed + 1, seed)).applied(
        IMAGES[:50].expand(2, 50, 72), some.expand(2, 50), epoch=3
    )

    assert torch.equal(steps.applied(IMAGES[:50], some, epoch=3), all_at_once[some])
    assert torch.equal(stack[1], all_at_once[some])
    assert not torch.equal(stack[0], stack[1])
    assert not torch.equal(steps.applied(IMAGES[:50], some, epoch=4), all_at_once[some])


class Keeping:
    """A procedure that keeps the batches that it receives and trains nothing."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []
        self.flat = FlatNetwork(torch.nn.Linear(72, 1), [])

    def begin_round(self, received: torch.Tensor, controls: torch.Tensor | None) -> None:
        """Nothing begins."""

    def phases(self, steps: int, batches_per_epoch: int) -> list[Phase]:
        """One phase, which keeps its batches."""
        return [Phase(lambda rows, factor: self.seen.append(rows.features), steps)]

    def end_round(self, steps: int) -> None:
        """Nothing ends."""

    def evaluated(self) -> FlatNetwork:
        """A network that is never asked."""
        return self.flat

    def state(self) -> dict[str, torch.Tensor]:
        """Nothing is moved."""
        return {}

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        """Nothing is moved."""


def training_on(rows: Rows, steps: Augmenting | None) -> tuple[LocalTraining, Keeping]:
    """A training of four batches an epoch, and what it trained on."""
    keeping = Keeping()
    batches = Batches(len(rows), 4, [np.random.default_rng(1)], stacked=False)
    pace = Pace(schedule=ConstantRate(name="constant"), steps=100)
    local = LocalTraining(keeping, rows=rows, batches=batches, pace=pace, dropout_seed=0, augmenting=steps)
    return local, keeping


def test_batches_are_changed_in_each_epoch_and_a_resumed_run_changes_them_alike() -> None:
    """Training uses the plain batches, changed by the epoch's number. The rows themselves do not change."""
    features = torch.from_numpy(np.random.default_rng(3).normal(size=(40, 72)).astype(np.float32))
    rows = Rows(features.clone(), torch.zeros(40))
    plain, seen_plain = training_on(rows, None)
    changed, seen = training_on(rows, augmenting(*BOTH))

    plain.train_round(8, torch.zeros(0))
    changed.train_round(3, torch.zeros(0))
    state = changed.state()
    changed.train_round(5, torch.zeros(0))
    resumed, seen_resumed = training_on(rows, augmenting(*BOTH))
    resumed.restore(state)
    resumed.train_round(5, torch.zeros(0))

    assert torch.equal(rows.features, features)
    assert all(torch.equal(one, other) for one, other in zip(seen.seen[3:], seen_resumed.seen, strict=True))
    for number, batch in enumerate(seen_plain.seen):
        numbers = torch.stack([(features == row).all(1).nonzero()[0, 0] for row in batch])
        expected = augmenting(*BOTH).applied(batch, numbers, epoch=number // 4)
        assert torch.equal(seen.seen[number], expected)
        assert not torch.equal(expected, batch)


@pytest.mark.parametrize("seed", range(3))
def test_a_mask_follows_its_image(seed: int) -> None:
    """Each channel of these images is its mask, and is so after the steps; other targets are never changed."""
    masks = (torch.rand(4000, 24, generator=torch.Generator().manual_seed(seed)) > 0.5).float()
    batch = Rows(masks.repeat(1, 3), masks)
    plan = make_plan(method={"name": "local"}, architecture=U_NET | {"augmentation": [{"name": "flip"}]})

    following = replace(augmenting(*BOTH, seeds=(seed,)), has_masks=True).changed(batch, ROWS, epoch=1)
    others = augmenting(*BOTH, seeds=(seed,)).changed(batch, ROWS, epoch=1)

    assert torch.equal(following.features, following.targets.repeat(1, 3))
    assert not torch.equal(following.targets, masks)
    assert torch.equal(others.targets, masks)
    found = _augmenting(plan, [Seeds.published(seed, "ahus")])
    assert found is not None
    assert found.has_masks


IMAGE = {"name": "convolutional", "image": {"height": 4, "width": 6}, "blocks": [2]}


@pytest.mark.parametrize(
    ("architecture", "steps", "words"),
    [
        ({"name": "dense", "hidden": []}, [{"name": "flip"}], "Extra inputs are not permitted"),
        (IMAGE, [{"name": "shift", "pixels": 4}], "by 4 pixels, but the shorter side of the images has only 4 pixels"),
        (IMAGE, [{"name": "flip"}, {"name": "flip"}], "lists the same change of images twice"),
        (IMAGE, [{"name": "turn"}], "turn"),
        (IMAGE, [{"name": "shift", "pixels": 0}], "greater than or equal to 1"),
    ],
)
def test_a_plan_that_cannot_be_done_is_refused(architecture: dict[str, Any], steps: Any, words: str) -> None:
    """Each with its reason."""
    with pytest.raises(ValueError, match=words):
        make_plan(method={"name": "local"}, architecture=architecture | {"augmentation": steps})
