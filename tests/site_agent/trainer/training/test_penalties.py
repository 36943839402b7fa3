"""Penalties equal their formulas, on federated parameters only, and never in the first round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from protos.plan.architecture import DenseNetwork, ParallelNetwork, network_tensors
from protos.plan.ingredients import Contrastive, ExtractorContrast, Penalty, Proximal
from protos.plan.optimisers import StochasticGradientDescent, TaskDefault
from site_agent.trainer.site_network import build_network
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.flat_network import FlatNetwork
from site_agent.trainer.training.procedures import PenaltyTerm, contrast
from site_agent.trainer.training.torch_losses import build_loss
from site_agent.trainer.training.training_model import Recipe
from tests.for_each import for_each

DENSE = DenseNetwork(name="dense", hidden=(3,), activation="tanh")
PARALLEL = ParallelNetwork(name="parallel", common=(3,), unique=(3,), activation="tanh")


def _recipe(flat: FlatNetwork) -> Recipe:
    """Of penalties without a contrast, which build no other network."""
    loss = build_loss(TaskDefault(name="task-default"), "binary", 1, torch.zeros(1))
    return Recipe(build=lambda: flat, loss=loss, optimiser=StochasticGradientDescent(name="sgd", learning_rate=0.1))


def _rows(seed: int) -> Rows:
    generator = np.random.default_rng(seed)
    return Rows(torch.from_numpy(generator.normal(size=(5, 2)).astype(np.float32)), torch.zeros(5))


def _network(penalty: Penalty) -> tuple[FlatNetwork, PenaltyTerm]:
    architecture = PARALLEL if isinstance(penalty, ExtractorContrast) else DENSE
    tensors = network_tensors(architecture, columns=2, outputs=1)
    federated = [tensor.name for tensor in tensors if tensor.part not in ("head", "unique")]

    def build() -> FlatNetwork:
        flat = FlatNetwork(build_network(architecture, 2, 1, 2), federated)
        flat.start(tensors, 3)
        return flat

    flat = build()
    recipe = _recipe(flat)
    return flat, PenaltyTerm(penalty, flat, Recipe(build=build, loss=recipe.loss, optimiser=recipe.optimiser))


def _log_loss(own: Tensor, alike: Tensor, other: Tensor, temperature: float) -> Tensor:
    """The cross-entropy of two cosines with label 0, written out."""

    def cosine(one: Tensor, two: Tensor) -> Tensor:
        return (one * two).sum(-1) / (one.square().sum(-1).sqrt() * two.square().sum(-1).sqrt())

    towards, away = torch.exp(cosine(own, alike) / temperature), torch.exp(cosine(own, other) / temperature)
    return -torch.log(towards / (towards + away)).mean()


@pytest.mark.parametrize("strength", [0.01, 1.0, 7.5])
def test_the_proximal_gradient_is_that_of_its_formula(strength: float) -> None:
    """Autograd of strength / 2 * ||own - received||^2 gives what is added; private parameters get nothing."""
    torch.manual_seed(0)
    flat = FlatNetwork(nn.Linear(3, 2), ["weight"])
    flat.federated_gradient.copy_(torch.arange(6.0))
    received = torch.randn(6)
    own = flat.federated_values.clone().requires_grad_()
    (formula,) = torch.autograd.grad(strength / 2 * ((own - received) ** 2).sum(), own)
    penalties = PenaltyTerm(Proximal(strength), flat, _recipe(flat))

    penalties.begin_round(received)
    penalties.add_gradients()

    torch.testing.assert_close(flat.federated_gradient, torch.arange(6.0) + formula)
    assert flat.private.grad is not None
    assert not flat.private.grad.any()


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_a_contrast_is_the_cross_entropy_of_two_cosines(temperature: float) -> None:
    """By numbers: z lies with a (cosine 1) and across b (cosine 0), so the loss is log(1 + exp(-1 / T))."""
    own = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    alike, other = torch.tensor([[1.0, 0.0], [0.0, 5.0]]), torch.tensor([[0.0, 4.0], [7.0, 0.0]])

    found = contrast(own, alike, other, temperature)

    assert float(found) == pytest.approx(np.log1p(np.exp(-1 / temperature)), rel=1e-5)
    assert float(contrast(own, other, alike, temperature)) == pytest.approx(np.log1p(np.exp(1 / temperature)), rel=1e-5)


@pytest.mark.parametrize(
    "penalty",
    [
        Contrastive(strength=0.7, temperature=0.5),
        ExtractorContrast(common_strength=0.3, unique_strength=2.0, temperature=0.5),
    ],
    ids=["moon", "perfcl"],
)
@for_each("seed", range(5))
def test_contrasts_compare_with_what_was_received_and_what_was_left(penalty: Penalty, seed: int) -> None:
    """Left is the model after the last round's training, before the next values were taken in."""
    (flat, penalties), rows = _network(penalty), _rows(seed)
    represent = flat.network.represent  # type: ignore[operator]

    penalties.begin_round(flat.federated_values.clone())
    is_absent = penalties.term(rows) is None
    flat.federated.data.mul_(-0.5)
    flat.private.data.add_(0.3)
    left = [z.detach() for z in represent(rows.features)]  # type: ignore[operator]
    penalties.end_round()
    flat.federated.data.add_(torch.linspace(-1, 1, flat.federated.numel()))
    received = [z.detach() for z in represent(rows.features)]  # type: ignore[operator]
    penalties.begin_round(flat.federated_values.clone())
    flat.federated.data.mul_(0.8)
    own = represent(rows.features)  # type: ignore[operator]
    term = penalties.term(rows)
    assert term is not None
    found = term(own)

    if isinstance(penalty, Contrastive):
        expected = 0.7 * _log_loss(own[0], received[0], left[0], 0.5)
    else:
        of_common = _log_loss(own[0], received[0], left[0], 0.5)
        expected = 0.3 * of_common + 2.0 * _log_loss(own[1], left[1], received[0], 0.5)
    assert is_absent
    torch.testing.assert_close(found, expected)


@for_each("seed", range(3))
def test_a_state_keeps_what_was_left(seed: int) -> None:
    """Restored into fresh penalties on an equal model, the next round's term is the same to the bit."""
    penalty, rows = Contrastive(strength=1.0, temperature=0.5), _rows(seed)
    (flat, penalties), (equal, fresh) = _network(penalty), _network(penalty)
    penalties.begin_round(flat.federated_values)
    flat.federated.data.mul_(-0.5)
    penalties.end_round()
    flat.federated.data.add_(0.3)
    equal.adopt(flat)

    before = fresh.state()
    fresh.restore(penalties.state())

    found = []
    for each in (penalties, fresh):
        each.begin_round(flat.federated_values)
        term = each.term(rows)
        assert term is not None
        found.append(float(term((torch.ones(5, 3),))))
    assert before == {}
    assert found[0] == found[1]
