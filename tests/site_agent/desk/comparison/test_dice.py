"""Dice of masks and its loss: known figures, empty masks, and both against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from site_agent.desk.comparison.bootstrap_intervals import compare
from site_agent.desk.comparison.evaluation import HeldOutRows, dice_of_images
from site_agent.desk.comparison.gain import FEDERATED
from site_agent.trainer.training.torch_losses import LossFunction
from tests.for_each import for_each

LOSS = LossFunction(task="segmentation")


@pytest.mark.parametrize(
    ("mask", "predicted", "dice"),
    [
        ([1, 1, 0, 0], [1, 1, 0, 0], 1.0),
        ([1, 1, 0, 0], [0, 0, 1, 1], 0.0),
        ([1, 1, 0, 0], [1, 0, 0, 0], 2 / 3),
        ([1, 1, 1, 0], [1, 1, 1, 1], 6 / 7),
        ([0, 0, 0, 0], [0, 0, 0, 0], 1.0),
        ([0, 0, 0, 0], [0, 1, 0, 0], 0.0),
        ([0, 1, 0, 0], [0, 0, 0, 0], 0.0),
    ],
)
def test_dice_of_known_masks(mask: list[int], predicted: list[int], dice: float) -> None:
    """Figures by hand; two empty masks agree."""
    found = dice_of_images(np.array([mask], dtype=np.float32), np.array([predicted], dtype=bool))

    assert found.tolist() == [pytest.approx(dice, abs=1e-15)]


def test_the_loss_of_known_outputs() -> None:
    """Logits of 0 are probabilities of one half: 1 - (2·1 + 1)/(2 + 2 + 1) of Dice, and log 2 of cross-entropy."""
    outputs, masks = torch.zeros(1, 4), torch.tensor([[1.0, 1.0, 0.0, 0.0]])

    assert float(LOSS(outputs, masks)) == pytest.approx(1 - 3 / 5 + math.log(2), abs=1e-6)
    assert float(LOSS(outputs, torch.zeros(1, 4))) == pytest.approx(1 - 1 / 3 + math.log(2), abs=1e-6)


def rows(count: int, patients: list[int] | None = None) -> HeldOutRows:
    """Rows of masks; what they cover is not looked at."""
    who = None if patients is None else np.array(patients)
    return HeldOutRows(task="segmentation", targets=np.full(count, 0.3), classes=(), patients=who)


@for_each("seed", range(5))
def test_the_interval_of_dice_is_over_patients(seed: int) -> None:
    """Ten equal images of each patient say no more than one: the interval is that of the patients' own images."""
    generator = np.random.default_rng(seed)
    dice = generator.random(60)

    one = compare(rows(60, list(range(60))), {FEDERATED: dice}, seed).interval(FEDERATED, "dice")
    many = compare(rows(600, [n // 10 for n in range(600)]), {FEDERATED: dice.repeat(10)}, seed)

    found = many.interval(FEDERATED, "dice")
    assert one is not None
    assert found is not None
    assert (found.low, found.high) == pytest.approx((one.low, one.high))
    assert one.low < many.metrics[FEDERATED]["dice"] < one.high  # type: ignore[operator]  # it is defined
