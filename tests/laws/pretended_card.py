"""Trains on a simulated device: `python -m tests.laws.pretended_card`.

Torch computes shapes and devices only, and refuses operations whose tensors are on two devices. Two things are not
seen: convolutions are not refused, and networks are built on the device, as such tensors cannot move a parameter.
A line for each method and each kind of network says `ok`, or what was refused. It is a process of its own, because
torch keeps a device that was made up.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from protos.plan.ingredients import SensitivePrefix
from protos.plan.optimisers import TaskDefault
from site_agent.trainer.data.contract import Task
from site_agent.trainer.site_network import Seeds, SiteNetworks, begin_training, build_network, rows_of
from site_agent.trainer.study import Study
from site_agent.trainer.training.flat_network import FlatNetwork, part_of
from site_agent.trainer.training.local import LocalTraining, sensitivities
from site_agent.trainer.training.torch_losses import build_loss
from tests.laws.catalogue import NAMES, catalogue_plan, rows_at
from tests.protos.architectures import KINDS, drawn

CARD: Final = "card"
MIXED: Final = "rows on the processor"


class _PlainDescent(torch.optim.SGD):
    """Without the fused kernel, which such tensors do not have; a card has it."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings | {"fused": False})


def train(name: str) -> None:
    """Two rounds of received values, saved and restored in between; the update is on the processor again."""
    plan = catalogue_plan(name)
    study = Study(plan, rows_at("ahus"), seeds=Seeds.published(plan.seed, "ahus"))
    networks, federated = replace(study.networks, device=CARD), study.manifest.tensors
    with FakeTensorMode(allow_non_fake_inputs=True):
        training = begin_training(networks, plan.ingredients, federated, rows_of(study.dataset), study.seeds)
        received = torch.zeros(training.flat.federated_values.numel())
        for rate in (1.0, 0.5):
            training.flat.take_in(received, rate)
            training.local.train_round(4, received, torch.zeros_like(received))
            state = training.local.state()
            training.local._procedure.restore(
                {key: value.cpu().to(CARD) for key, value in part_of(state, "procedure").items()}
            )
        moved = [training.flat.update(received)]
        if isinstance(plan.ingredients.federated, SensitivePrefix):
            moved.append(sensitivities(training.flat, training.rows.training, training.recipe.loss, networks.tensors))
        evaluated = training.local.evaluated().stretches
    if {tensor.device.type for tensor in moved} != {"cpu"} or {tensor.device.type for tensor in evaluated} != {CARD}:
        raise RuntimeError("tensors end on another device")


def compute(kind: str, where: str = CARD) -> None:
    """Forward and backward of drawn networks, with a weight for each class; `where` are the rows."""
    for seed in range(3):
        network = drawn(kind, seed)
        columns, outputs = network.columns, network.outputs
        task: Task = "multi-class" if outputs > 1 else "binary"
        weights = TaskDefault(name="task-default", class_weights="balanced")
        with FakeTensorMode(allow_non_fake_inputs=True):
            with torch.device(CARD):
                module = build_network(network.architecture, columns, outputs, network.common)
            flat = FlatNetwork(module, [], device=CARD)
            targets = torch.zeros(5, dtype=torch.int64 if task == "multi-class" else torch.float32)
            loss = build_loss(weights, task, outputs, targets)
            rows = torch.zeros(5, columns, device=where)
            torch.autograd.backward(loss(flat.network(rows), targets.to(CARD)))


def _tried(subject: str, act: Callable[[], None]) -> None:
    try:
        act()
        print(f"{subject}: ok")
    except Exception as error:  # the line is what the test reads
        print(f"{subject}: {type(error).__name__} {error}".replace("\n", " "))


def main() -> None:
    """Try all of them."""
    _setup_privateuseone_for_python_backend(CARD)
    # No generator is there for it, and without dropout none is needed.
    LocalTraining._first_draw = lambda *_: torch.zeros(16, dtype=torch.uint8)  # type: ignore[method-assign]
    LocalTraining._own_dropout = lambda _: nullcontext()  # type: ignore[method-assign]
    torch.optim.SGD = _PlainDescent  # type: ignore[misc]
    build = SiteNetworks.build

    def built(networks: SiteNetworks) -> nn.Module:
        with torch.device(networks.device):
            return build(networks)

    SiteNetworks.build = built  # type: ignore[method-assign]
    for name in NAMES:
        _tried(name, lambda name=name: train(name))  # type: ignore[misc]
    for kind in KINDS:
        _tried(kind, lambda kind=kind: compute(kind))  # type: ignore[misc]
    _tried(MIXED, lambda: compute("dense", "cpu"))


if __name__ == "__main__":
    main()
