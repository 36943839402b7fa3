"""Dice of masks and its loss: known figures, empty masks, and both against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from protos.errors import ConfigurationError
from protos.plan.losses import Focal, Loss, TaskDefault
from site_agent.desk.comparison.bootstrap_intervals import compare
from site_agent.desk.comparison.evaluation import HeldOutRows, dice_of_images
from site_agent.desk.comparison.gain import FEDERATED, SILOED, Baselines, gain_of
from site_agent.trainer.training.torch_losses import LossFunction, build_loss, losses_of_masks
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


@for_each("seed", range(20))
def test_dice_is_the_harmonic_mean_of_precision_and_recall_of_each_image(seed: int) -> None:
    """The definition by sets, image by image; the other images change nothing, nor does the order of the two masks."""
    generator = np.random.default_rng(seed)
    masks, predicted = generator.random((2, 12, 30)) < generator.random((2, 12, 1))

    found = dice_of_images(masks, predicted)

    for mask, other, one in zip(masks, predicted, found, strict=True):
        inside, said = set(np.flatnonzero(mask)), set(np.flatnonzero(other))
        expected = 2 * len(inside & said) / (len(inside) + len(said)) if inside or said else 1.0
        assert one == pytest.approx(expected, abs=1e-15)
    np.testing.assert_array_equal(dice_of_images(predicted, masks), found)


def test_the_loss_of_known_outputs() -> None:
    """Logits of 0 are probabilities of one half: 1 - (2·1 + 1)/(2 + 2 + 1) of Dice, and log 2 of cross-entropy."""
    outputs, masks = torch.zeros(1, 4), torch.tensor([[1.0, 1.0, 0.0, 0.0]])

    assert float(LOSS(outputs, masks)) == pytest.approx(1 - 3 / 5 + math.log(2), abs=1e-6)
    assert float(LOSS(outputs, torch.zeros(1, 4))) == pytest.approx(1 - 1 / 3 + math.log(2), abs=1e-6)


@pytest.mark.parametrize("mask", [[0.0] * 4, [1.0] * 4, [1.0, 1.0, 0.0, 0.0]])
def test_a_certain_and_right_answer_has_no_loss_and_a_wrong_one_a_finite_gradient(mask: list[float]) -> None:
    """Empty and full masks too, for logits as large as float32 training could make them."""
    masks = torch.tensor([mask])
    right = 1e4 * (2 * masks - 1)
    wrong = (-right).requires_grad_()

    (gradient,) = torch.autograd.grad(LOSS(wrong, masks), [wrong])

    assert float(LOSS(right, masks)) == pytest.approx(0.0, abs=1e-6)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0


@for_each("seed", range(10))
def test_the_loss_is_a_mean_over_images_and_of_a_stack_a_sum_over_copies(seed: int) -> None:
    """Each image has its own Dice: a large structure does not outweigh a small one of another patient."""
    generator = torch.Generator().manual_seed(seed)
    outputs = 3 * torch.randn(3, 7, 20, generator=generator, dtype=torch.float64)
    masks = (torch.rand(3, 7, 20, generator=generator) < 0.3).double()

    alone = torch.stack([torch.stack([LOSS(o[None], m[None]) for o, m in zip(*copy, strict=True)])
                         for copy in zip(outputs, masks, strict=True)])  # fmt: skip

    torch.testing.assert_close(losses_of_masks(outputs, masks), alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(LOSS.per_copy(outputs, masks), alone.mean(1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(LOSS(outputs, masks), alone.mean(1).sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(LOSS.per_copy(outputs, masks[0]), LOSS.per_copy(outputs, masks[0].expand(3, 7, 20)))


@pytest.mark.parametrize("loss", [Focal(name="focal"), TaskDefault(name="task-default", class_weights="balanced")])
def test_a_loss_for_classes_is_refused(loss: Loss) -> None:
    """A mask has no classes to weigh, and the error says what the target is."""
    with pytest.raises(ConfigurationError, match="the target of this site is a mask"):
        build_loss(loss, "segmentation", 4, torch.zeros(2, 4))


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


def test_a_better_dice_is_a_gain() -> None:
    """More is better: the federated U-Net beats the one trained alone, and a worse one loses."""
    generator = np.random.default_rng(0)
    dice = generator.uniform(0.4, 0.6, 80)
    for sign, verdict in ((1, "gained"), (-1, "lost")):
        models = {FEDERATED: dice + 0.2 * sign, SILOED: dice}

        gain = gain_of(rows(80), compare(rows(80), models, 0), Baselines(placebo="siloed"))

        assert gain.verdict == verdict
        assert f"masks is {models[FEDERATED].mean():.3f}" in gain.sentence
