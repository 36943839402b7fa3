"""Defines for each method how a site trains in one round (the local procedure), and the penalty of its loss.

A procedure owns the networks of its method and trains them batch by batch. The site sends the update of the flat
network that the procedure receives. The site itself may use another network (`evaluated`). The rules:

* a procedure draws no batches. It receives them, so all procedures train on the same rows;
* `parts` has everything on which the next round depends;
* a personal model is never sent: it is in a network of its own, whose values no function returns.

The proximal term is added as its gradient. Contrastive terms need the outputs of two frozen networks for the same
batch: the model as it was received, and the site's own model at the end of its last round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, assert_never

import torch
from torch import Tensor
from torch.nn import functional

from protos.plan.ingredients import (
    ColumnByColumn,
    Contrastive,
    ControlVariates,
    ExtractorContrast,
    FederatedOnly,
    InnerProblem,
    Method,
    Mixture,
    Penalty,
    PersonalCopy,
    PrivateFirst,
    Proximal,
    Together,
)
from site_agent.trainer.models.dense_models import Columns
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.flat_network import FlatNetwork, State, part_of, prefixed
from site_agent.trainer.training.training_model import Model, Recipe, Term, as_representing


class PenaltyTerm:
    """Adds a method's penalty to the training of one model."""

    def __init__(self, penalty: Penalty | None, flat: FlatNetwork, recipe: Recipe) -> None:
        self._penalty, self._flat = penalty, flat
        contrasts = isinstance(penalty, Contrastive | ExtractorContrast)
        self._received = torch.empty(0)
        self._as_received = _frozen(recipe) if contrasts else None
        self._as_left = _frozen(recipe) if contrasts else None
        self._has_left = False

    def begin_round(self, received: Tensor) -> None:
        """Start a round, after the model has loaded the received shared parameters."""
        self._received = received
        if self._as_received is not None:
            self._as_received.adopt(self._flat)

    def end_round(self) -> None:
        if self._as_left is not None:
            self._as_left.adopt(self._flat)
            self._has_left = True

    def term(self, batch: Rows) -> Term | None:
        """Return how to add the contrastive term to a batch's loss, or None without it and in the first round."""
        penalty = self._penalty
        if self._as_received is None or self._as_left is None or not self._has_left:
            return None
        assert isinstance(penalty, Contrastive | ExtractorContrast)
        with torch.no_grad():
            received = as_representing(self._as_received.network).represent(batch.features)
            left = as_representing(self._as_left.network).represent(batch.features)
        return lambda own: _contrast(penalty, own, received, left)

    def add_gradients(self) -> None:
        """Add the proximal term's gradient to the model's gradient, in place."""
        if isinstance(self._penalty, Proximal):
            # The gradient of strength / 2 * ||own - received||^2; private parameters have none.
            difference = self._flat.federated_values - self._received
            self._flat.federated_gradient.add_(difference, alpha=self._penalty.strength)

    def state(self) -> State:
        return prefixed("left", self._as_left.state()) if self._as_left is not None and self._has_left else {}

    def restore(self, state: State) -> None:
        """Continue from a saved state of the penalty. Call `begin_round` first."""
        kept = part_of(state, "left")
        self._has_left = bool(kept)
        if kept and self._as_left is not None:
            self._as_left.restore(kept)


def contrast(own: Tensor, alike: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Compute the contrastive loss: the mean cross-entropy of [cos(z, a), cos(z, b)] / temperature with label 0.

    Source: Li et al. 2021 (MOON), eq. 3. z is `own`, a is `alike` and b is `other`: float32 of shape (rows, width), the
    latter two without gradient. Return shape ().
    """
    towards = functional.cosine_similarity(own, alike, dim=-1)
    away = functional.cosine_similarity(own, other, dim=-1)
    return functional.softplus((away - towards) / temperature).mean(-1)


def _contrast(
    penalty: Contrastive | ExtractorContrast,
    own: tuple[Tensor, ...],
    received: tuple[Tensor, ...],
    left: tuple[Tensor, ...],
) -> Tensor:
    match penalty:
        case Contrastive(strength=strength, temperature=temperature):
            pairs = zip(own, received, left, strict=True)
            return strength * torch.stack([contrast(z, a, b, temperature) for z, a, b in pairs]).sum()
        case ExtractorContrast(common_strength=common, unique_strength=unique, temperature=temperature):
            of_common = contrast(own[0], received[0], left[0], temperature)
            return common * of_common + unique * contrast(own[1], left[1], received[0], temperature)
        case _:
            assert_never(penalty)


def _frozen(recipe: Recipe) -> FlatNetwork:
    flat = recipe.build()
    flat.network.eval()
    return flat


StatePart: TypeAlias = FlatNetwork | Model | PenaltyTerm | Tensor
Step: TypeAlias = Callable[[Rows], None]  # trains on a batch


@dataclass(frozen=True)
class Phase:
    """Several consecutive training steps of the same kind."""

    step: Step
    steps: int


class Procedure:
    """Local training by one method at one site. Subclasses override only the functions that differ.

    The site would use the network `used` if training ended now. The next step depends on `parts`, batches and dropout.
    """

    def __init__(self, used: FlatNetwork, parts: Mapping[str, StatePart]) -> None:
        self._used, self.parts = used, parts

    def begin_round(self, _received: Tensor, _controls: Tensor | None, /) -> None:
        """Start a round. The shared network has already loaded the received parameters.

        Both are float32 of the shape of the federated numbers. `_controls` is the mean control variate or None.
        """
        return

    def step(self, batch: Rows, /) -> None:
        """Train on one batch."""
        raise NotImplementedError

    def phases(self, steps: int, _batches_per_epoch: int, /) -> list[Phase]:
        """Return the training phases of a round with this many steps, in order."""
        return [Phase(self.step, steps)]

    def end_round(self, _steps: int, /) -> None:
        return

    def evaluated(self) -> FlatNetwork:
        return self._used

    def state(self) -> State:
        found: State = {}
        for name, part in self.parts.items():
            found |= {name: part.clone()} if isinstance(part, Tensor) else prefixed(name, part.state())
        return found

    def restore(self, state: State, /) -> None:
        for name, part in self.parts.items():
            if isinstance(part, Tensor):
                part.copy_(state[name])
            else:
                part.restore(part_of(state, name))


def build_procedure(method: Method, flat: FlatNetwork, recipe: Recipe) -> Procedure:
    """Build a method's training procedure. A round sends the update of the network `flat`."""
    procedure = method.procedure
    match procedure:
        case Together():
            return _ModelTraining(flat, recipe, method.penalty)
        case PrivateFirst(epochs=epochs):
            return _ModelTraining(flat, recipe, method.penalty, epochs)
        case FederatedOnly():
            return _ModelTraining(flat, recipe, method.penalty, 0)
        case PersonalCopy(strength=strength):
            return _CopyTraining(_ModelTraining(flat, recipe, method.penalty), recipe, strength)
        case Mixture(start=start, rate=rate):
            return _MixtureTraining(_ModelTraining(flat, recipe, method.penalty), recipe, start, rate)
        case InnerProblem():
            return _MoreauTraining(flat, recipe, procedure)
        case ControlVariates():
            return _ControlledTraining(flat, recipe)
        case ColumnByColumn():
            return _ColumnTraining(flat, recipe)
        case _:
            assert_never(procedure)


class _ModelTraining(Procedure):
    """Trains one model: all parameters in every step, as in FedAvg, or private and federated ones in separate steps.

    With `private_epochs` each of the two groups has an optimiser of its own, and a round first trains the private ones
    (FedRep). With 0 epochs the private ones keep their first values (FedBABU).
    """

    def __init__(
        self, flat: FlatNetwork, recipe: Recipe, penalty: Penalty | None, private_epochs: int | None = None
    ) -> None:
        is_apart = private_epochs is not None
        self._private_epochs = private_epochs or 0
        self._model = Model(flat, recipe, [flat.federated] if is_apart else None)
        self._private = Model(flat, recipe, [flat.private]) if is_apart else None
        self._penalty = PenaltyTerm(penalty, flat, recipe)
        private = {} if self._private is None else {"private optimiser": self._private}
        super().__init__(flat, {"network": flat, "optimiser": self._model, "penalty": self._penalty, **private})

    def begin_round(self, received: Tensor, _controls: Tensor | None) -> None:
        self._penalty.begin_round(received)

    def phases(self, steps: int, batches_per_epoch: int) -> list[Phase]:
        last = Phase(self.step, steps)
        if self._private is None:
            return [last]
        return [Phase(partial(_step_private, self._private), self._private_epochs * batches_per_epoch), last]

    def step(self, batch: Rows) -> None:
        self._model.gradient(batch, self._penalty.term(batch))
        self._penalty.add_gradients()
        self._model.step()

    def end_round(self, _steps: int) -> None:
        self._penalty.end_round()


def _step_private(private: Model, batch: Rows) -> None:
    private.gradient(batch)
    private.step()


class _CopyTraining(Procedure):
    """Trains Ditto's personal model v on the task's loss + strength / 2 * ||v - received||^2.

    Source: Li et al. 2021 (Ditto), algorithm 1; the shared model takes its own step on the same batch.
    """

    def __init__(self, shared: _ModelTraining, recipe: Recipe, strength: float) -> None:
        self._shared, self._strength = shared, strength
        self._personal = Model(_twin(shared.evaluated(), recipe), recipe)
        self._received = torch.empty(0)
        own: dict[str, StatePart] = {"personal": self._personal.flat, "personal optimiser": self._personal}
        super().__init__(self._personal.flat, {**shared.parts, **own})

    def begin_round(self, received: Tensor, controls: Tensor | None) -> None:
        self._shared.begin_round(received, controls)
        self._received = received

    def step(self, batch: Rows) -> None:
        self._shared.step(batch)
        own = self._personal.flat
        self._personal.gradient(batch)
        own.federated_gradient.add_(own.federated_values - self._received, alpha=self._strength)
        self._personal.step()

    def end_round(self, steps: int) -> None:
        self._shared.end_round(steps)


class _MixtureTraining(Procedure):
    """Trains APFL's mixture: share * v + (1 - share) * w, where w is the shared model and v is the site's own model.

    Source: Deng et al. 2020, algorithm 1 and eq. 9, with the share's step as in docs/researcher.md: once a
    round, share <- clip(share - rate * (sum <v - w, share * g_v + (1 - share) * g_w> + 0.02 * share)), with the
    last step's gradients g_v of v and g_w of w.
    """

    def __init__(self, shared: _ModelTraining, recipe: Recipe, start: float, rate: float) -> None:
        self._shared, self._rate = shared, rate
        flat = shared.evaluated()
        self._own = Model(_twin(flat, recipe), recipe)
        self._mixed = Model(recipe.build(), recipe, [])
        self._share = torch.full((), start, device=flat.device)
        # The mixture's parameters follow from the two models, but the buffers of a hospital's own module do not.
        own: dict[str, StatePart] = {"own": self._own.flat, "own optimiser": self._own, "mixed": self._mixed.flat}
        super().__init__(self._mixed.flat, {**shared.parts, **own, "share": self._share})
        self._mix()

    def begin_round(self, received: Tensor, controls: Tensor | None) -> None:
        self._shared.begin_round(received, controls)

    def step(self, batch: Rows) -> None:
        self._shared.step(batch)
        self._mix()
        self._mixed.gradient(batch)
        for own, mixed in zip(self._own.flat.gradients, self._mixed.flat.gradients, strict=True):
            torch.mul(mixed, self._share, out=own)  # the mixture's derivative by v is the share
        self._own.step()

    def end_round(self, steps: int) -> None:
        self._shared.end_round(steps)
        slope = 0.02 * self._share
        gradients = zip(self._own.flat.gradients, self._shared.evaluated().gradients, strict=True)
        for (own, shared), (of_own, of_shared) in zip(self._pairs(), gradients, strict=True):
            gradient = self._share * of_own + (1.0 - self._share) * of_shared
            products = (own.data - shared.data) * gradient
            slope = slope + products.sum(-1)
        self._share.copy_((self._share - self._rate * slope).clamp(0.0, 1.0))

    def evaluated(self) -> FlatNetwork:
        self._mix()
        return self._used

    def _mix(self) -> None:
        for (own, shared), mixed in zip(self._pairs(), self._mixed.flat.stretches, strict=True):
            mixed.data.copy_(self._share * own.data + (1.0 - self._share) * shared.data)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self._own.flat.stretches, self._shared.evaluated().stretches, strict=True))


class _MoreauTraining(Procedure):
    """Trains pFedMe: in each step first the personal model t by an inner problem, then the shared model w towards t.

    Source: Dinh et al. 2020, algorithm 1 (as remembered). For every batch, `steps` steps of the plan's optimiser move t
    towards argmin of the loss + strength / 2 * ||t - w||^2; then w <- w - rate * strength * (w - t). The site uses t
    and sends w. Private parameters have no w. They are part of t.
    """

    def __init__(self, flat: FlatNetwork, recipe: Recipe, problem: InnerProblem) -> None:
        self._shared, self._problem = flat, problem
        self._personal = Model(_twin(flat, recipe), recipe)
        own = self._personal.flat
        super().__init__(own, {"shared": flat, "personal": own, "personal optimiser": self._personal})

    def begin_round(self, _received: Tensor, _controls: Tensor | None) -> None:
        self._personal.flat.federated_values.copy_(self._shared.federated_values)

    def step(self, batch: Rows) -> None:
        problem, own, shared = self._problem, self._personal.flat, self._shared.federated_values
        for _ in range(problem.steps):
            self._personal.gradient(batch)
            own.federated_gradient.add_(own.federated_values - shared, alpha=problem.strength)
            self._personal.step()
        shared.add_(own.federated_values - shared, alpha=problem.rate * problem.strength)
        self._shared.private.data.copy_(own.private.data)


class _ControlledTraining(Procedure):
    """Trains with SCAFFOLD, which replaces every gradient g of the shared parameters by g + c - c_i.

    Source: Karimireddy et al. 2020, algorithm 1, option II. c_i starts at 0 and becomes
    c_i - c + (received - own) / (steps * learning rate) after each round; it stays at the site. The coordinator
    computes its part from the update alone (see protos/plan/server_rules.py), so c_i is never sent.
    """

    def __init__(self, flat: FlatNetwork, recipe: Recipe) -> None:
        self._flat, self._model = flat, Model(flat, recipe)
        self._rate = recipe.optimiser.learning_rate
        self._own_control = torch.zeros_like(flat.federated_values)
        self._mean_control = torch.zeros_like(flat.federated_values)
        self._received = torch.empty(0)
        super().__init__(flat, {"network": flat, "optimiser": self._model, "control": self._own_control})

    def begin_round(self, received: Tensor, controls: Tensor | None) -> None:
        assert controls is not None
        self._received, self._mean_control = received, controls

    def step(self, batch: Rows) -> None:
        self._model.gradient(batch)
        self._flat.federated_gradient.add_(self._mean_control).sub_(self._own_control)
        self._model.step()

    def end_round(self, steps: int) -> None:
        moved = self._received - self._flat.federated_values
        self._own_control.copy_(self._own_control - self._mean_control + moved / (steps * self._rate))


class _ColumnTraining(Procedure):
    """Trains CHFL: with each batch, first the common column on its own loss, then the unique column on the joint loss.

    Source: Mori et al. 2022; docs/researcher.md. The common column is federated. The unique column with its lateral
    matrices is private. The common column's outputs are computed again after its step and detached, so no gradient of
    the joint loss reaches it.
    """

    def __init__(self, flat: FlatNetwork, recipe: Recipe) -> None:
        if not isinstance(flat.network, Columns):
            raise TypeError("training column by column needs a network with two columns")
        self._flat, self._network, self._loss = flat, flat.network, recipe.loss
        self._common = Model(flat, recipe, [flat.federated])
        self._unique = Model(flat, recipe, [flat.private])
        super().__init__(flat, {"network": flat, "optimiser": self._common, "unique optimiser": self._unique})

    def step(self, batch: Rows) -> None:
        self._flat.zero_gradients()
        outputs = self._network.common_outputs(batch.features)
        torch.autograd.backward(self._loss(outputs[-1], batch.targets))
        self._common.step()
        with torch.no_grad():
            outputs = self._network.common_outputs(batch.features)
        torch.autograd.backward(self._loss(self._network.joint(batch.features, outputs), batch.targets))
        self._unique.step()


def _twin(flat: FlatNetwork, recipe: Recipe) -> FlatNetwork:
    twin = recipe.build()
    twin.adopt(flat)
    return twin
