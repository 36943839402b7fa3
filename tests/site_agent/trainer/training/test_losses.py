"""The losses compared with torch, with their formulas, and at values for which formulas overflow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from protos.errors import ConfigurationError
from protos.plan.optimisers import Focal, Loss, TaskDefault
from site_agent.trainer.data.contract import Task
from site_agent.trainer.training.torch_losses import LossFunction, build_loss
from tests.for_each import for_each

CLASSES = 4
GAMMAS = [0.0, 0.5, 1.0, 2.0, 3.0, 20.0]
KINDS = ["binary", "classes", "numbers"]


def _task(kind: str) -> Task:
    tasks: dict[str, Task] = {"binary": "binary", "numbers": "regression"}
    return tasks.get(kind, "multi-class")


def _batch(seed: int, kind: str, rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Outputs and targets of some rows."""
    generator = torch.Generator().manual_seed(seed)
    outputs = 3 * torch.randn(rows, CLASSES if _task(kind) == "multi-class" else 1, generator=generator, dtype=dtype)
    targets = {
        "binary": torch.rand(rows, generator=generator, dtype=dtype),
        "classes": torch.randint(0, CLASSES, (rows,), generator=generator),
        "numbers": torch.randn(rows, generator=generator, dtype=dtype),
    }
    return outputs, targets[kind]


def _weights(kind: str, wanted: bool) -> Tensor | None:
    return torch.tensor([0.25, 1.0, 2.5, 0.75][: 2 if kind == "binary" else CLASSES]) if wanted else None


def _gradient(loss: LossFunction, outputs: Tensor, targets: Tensor) -> Tensor:
    outputs = outputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(outputs, targets), [outputs])
    return gradient


@for_each("seed", range(5))
def test_weights_are_torchs(seed: int) -> None:
    """Several classes: cross_entropy(weight=); binary: the two terms of the logistic loss, by the sum of weights."""
    outputs, targets = _batch(seed, "classes", 23)
    weights = (0.3, 1.0, 2.5, 0.7)
    logits, positive = _batch(seed, "binary", 23)[0], (targets > 1).float()

    several = LossFunction(task="multi-class", weights=torch.tensor(weights))
    binary = LossFunction(task="binary", weights=torch.tensor([0.3, 1.7]))

    expected = functional.cross_entropy(outputs, targets, weight=torch.tensor(weights))
    torch.testing.assert_close(several(outputs, targets), expected, rtol=1e-6, atol=0)
    row_weights = torch.where(positive > 0, 1.7, 0.3)
    summed = functional.binary_cross_entropy_with_logits(logits[:, 0], positive, weight=row_weights, reduction="sum")
    torch.testing.assert_close(binary(logits, positive), summed / row_weights.sum(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("kind", ["binary", "classes"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_focal_loss_is_its_formula(gamma: float, kind: str, weighted: bool) -> None:
    """Lin et al. 2017, eq. 4 and 5, row by row and class by class in plain numbers."""
    outputs, targets = _batch(11, kind, 9, dtype=torch.float64)
    weights = _weights(kind, weighted)
    found = LossFunction(task=_task(kind), gamma=gamma, weights=weights)(outputs, targets)

    total = weight_sum = 0.0
    for row, target in zip(outputs.numpy(), targets.numpy(), strict=True):
        logits = np.array([0.0, row[0]]) if kind == "binary" else row
        chances = np.exp(logits) / np.exp(logits).sum()
        shares = [1 - target, target] if kind == "binary" else np.eye(CLASSES)[int(target)]
        for number, (chance, share) in enumerate(zip(chances, shares, strict=True)):
            weight = share * (1.0 if weights is None else float(weights[number]))
            total += weight * -((1 - chance) ** gamma) * np.log(chance)
            weight_sum += weight

    assert float(found) == pytest.approx(total / weight_sum, rel=1e-10)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_are_the_slopes(gamma: float, kind: str, weighted: bool) -> None:
    """Each gradient equals the change of the loss when a logit moves a little."""
    outputs, targets = _batch(12, kind, 6, dtype=torch.float64)
    loss = LossFunction(task=_task(kind), gamma=gamma, weights=_weights(kind, weighted))

    assert torch.autograd.gradcheck(lambda moved: loss(moved, targets), [outputs.requires_grad_()])


@pytest.mark.parametrize("gamma", [*GAMMAS, 1e-6])
@pytest.mark.parametrize("kind", ["binary", "classes"])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_logit_overflows(gamma: float, kind: str, weighted: bool) -> None:
    """Logits of 0, of a few and of plus and minus 10,000, right and wrong: finite loss, finite gradient."""
    sizes = [-1e4, -104.0, -88.0, -17.0, -1e-30, 0.0, 1e-6, 17.0, 88.0, 104.0, 1e4]
    outputs = torch.cartesian_prod(torch.tensor(sizes), torch.tensor(sizes))
    _, targets = _batch(14, kind, len(outputs))
    if kind == "binary":
        outputs, targets = outputs[:, :1], (torch.arange(len(outputs)) % 3) / 2
    else:
        outputs = torch.cat((outputs, outputs.flip(1)), dim=1)
    loss = LossFunction(task=_task(kind), gamma=gamma, weights=_weights(kind, weighted))

    assert loss(outputs, targets).isfinite()
    assert _gradient(loss, outputs, targets).isfinite().all()


@pytest.mark.parametrize(("kind", "wrong"), [("binary", (19, 1)), ("numbers", (19, 1)), ("numbers", (18,))])
def test_targets_of_another_shape_are_no_targets(kind: str, wrong: tuple[int, ...]) -> None:
    """A column of targets is an error; spread over all pairs of rows it would be a loss of nothing."""
    outputs, _ = _batch(17, kind, 19)

    with pytest.raises(RuntimeError, match="expand"):
        LossFunction(task=_task(kind))(outputs, torch.zeros(wrong))


@settings(max_examples=100)
@given(counts=st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(any))
def test_balanced_weights_give_each_class_the_same_say(counts: list[int]) -> None:
    """rows / (classes * rows of the class); 0, and no error, for a class that no training row has."""
    targets = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    balanced = TaskDefault(name="task-default", class_weights="balanced")
    expected = [sum(counts) / (len(counts) * count) if count else 0.0 for count in counts]

    found = [build_loss(balanced, "multi-class", len(counts), targets).weights]
    if len(counts) == 2:
        found.append(build_loss(balanced, "binary", 1, targets.float()).weights)

    for weights in found:
        assert weights is not None
        assert weights.dtype == torch.float32
        assert weights.tolist()[: len(counts)] == pytest.approx(expected[: len(weights)], rel=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_a_class_without_training_rows_says_nothing(gamma: float) -> None:
    """Its rows move neither loss nor gradient, and rows of it alone have loss 0, never not a number."""
    outputs, targets = _batch(19, "classes", 30)
    loss = LossFunction(task="multi-class", gamma=gamma, weights=torch.tensor([1.0, 0.0, 2.0, 0.5]))
    absent = targets == 1

    moved = outputs + 50 * absent.unsqueeze(-1) * torch.randn(CLASSES, generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(loss(moved, targets), loss(outputs, targets))
    assert (_gradient(loss, outputs, targets)[absent] == 0).all()
    assert float(loss(outputs, torch.ones_like(targets))) == 0
    assert (_gradient(loss, outputs, torch.ones_like(targets)) == 0).all()


@pytest.mark.parametrize(
    ("loss", "task", "outputs", "reason"),
    [
        (Focal(name="focal"), "regression", 1, "target of this site is a number"),
        (
            TaskDefault(name="task-default", class_weights="balanced"),
            "regression",
            1,
            "target of this site is a number",
        ),
    ],
    ids=str,
)
def test_a_loss_that_does_not_fit_is_refused(loss: Loss, task: Task, outputs: int, reason: str) -> None:
    """Classes for a target of numbers end in three sentences before training."""
    with pytest.raises(ConfigurationError, match=reason) as caught:
        build_loss(loss, task, outputs, torch.zeros(8))

    assert caught.value.consequence == "Nothing was trained and nothing was sent."
    assert caught.value.remedy.startswith(("Agree on ", "Ask the researcher "))
