"""A helper computes what rank 0 sends, refuses everything else, and opens no file."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from protos.errors import ConfigurationError, OperatorError, ProtocolError, UnavailableError
from protos.plan.architecture import DenseNetwork, NamedTensors, network_tensors
from protos.plan.losses import TaskDefault
from protos.plan.optimisers import StochasticGradientDescent
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.models.attention import chosen_attention
from site_agent.trainer.models.network_catalogue import build_network
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.parted_gradients import (
    MOST_NUMBERS,
    GradientParts,
    _Helper,
    describe_network,
    help_trainer,
    lost_process,
    part_gradient,
    parts_of,
)
from site_agent.trainer.training.torch_losses import build_loss
from site_agent.trainer.training.training_model import Model, Recipe

prepare_arithmetic(1)

COLUMNS, OUTPUTS = 3, 3
DENSE = DenseNetwork(name="dense", hidden=(4,), activation="tanh", dropout=0.3)
TENSORS = network_tensors(DENSE, columns=COLUMNS, outputs=OUTPUTS)
NAMES = [tensor.name for tensor in TENSORS[:2]]


class Mailbox:
    """The helper's end: what was sent to it, and what it has sent."""

    def __init__(self, *tensors: Tensor) -> None:
        """Put tensors in."""
        self.inbox, self.outbox = deque(tensors), deque[Tensor]()

    def begin_send(self, tensor: Tensor, _rank: int) -> Callable[[float], None]:
        """Keep a copy."""
        self.outbox.append(tensor.clone())
        return lambda _: None

    def receive(self, into: Tensor, _rank: int, _seconds: float) -> None:
        """Take the next tensor, of exactly this shape; nothing more is a lost process."""
        if not self.inbox:
            raise lost_process()
        arrived = self.inbox.popleft()
        assert (arrived.shape, arrived.dtype) == (into.shape, into.dtype)
        into.copy_(arrived)


class Together:
    """Rank 0's end: its helpers work while it waits."""

    def __init__(self) -> None:
        """Start no helper yet."""
        self.mail: dict[int, Mailbox] = {}
        self.helpers: dict[int, _Helper] = {}

    def begin_send(self, tensor: Tensor, rank: int) -> Callable[[float], None]:
        """Put a copy into a helper's mailbox."""
        mailbox = self.mail.setdefault(rank, Mailbox())
        self.helpers.setdefault(rank, _Helper(mailbox, 0))
        mailbox.inbox.append(tensor.clone())
        return lambda _: None

    def receive(self, into: Tensor, rank: int, _seconds: float) -> None:
        """Let the helper follow orders until it has answered."""
        while not self.mail[rank].outbox:
            assert self.helpers[rank].follow()
        into.copy_(self.mail[rank].outbox.popleft())


def batch(rows: int) -> Rows:
    """Rows of three classes with unequal weights."""
    generator = np.random.default_rng(rows)
    features = torch.from_numpy(generator.normal(size=(rows, COLUMNS)).astype(np.float32))
    return Rows(features, torch.from_numpy(generator.integers(0, OUTPUTS, rows)))


def recipe() -> Recipe:
    """A dense network with dropout and class weights."""
    loss = build_loss(
        TaskDefault(name="task-default", class_weights=(0.2, 1.0, 3.0)), "multi-class", OUTPUTS, torch.zeros(1)
    )
    return Recipe(
        build=lambda: FlatNetwork(build_network(DENSE, COLUMNS, OUTPUTS), NAMES),
        loss=loss,
        optimiser=StochasticGradientDescent(name="sgd", learning_rate=0.1),
        described=describe_network(DENSE, (COLUMNS, OUTPUTS, None), NAMES, loss, "cpu"),
    )


def trained(parts: GradientParts, rows: int) -> list[Tensor]:
    """Four steps on a batch; the parameters, and the next number that torch would draw."""
    own = recipe()
    flat = own.build()
    flat.start(TENSORS, 0)
    model = Model(flat, own)
    torch.manual_seed(1)
    for _ in range(4):
        assert parts.gradient(flat, own, batch(rows)) == (rows > 1)
        model.step(1.0)
    return [*(stretch.data.clone() for stretch in flat.stretches), torch.rand(1)]


@pytest.mark.parametrize(("processes", "rows"), [(2, 9), (3, 10), (4, 3), (2, 1)])
def test_helpers_compute_the_bits_of_one_process(processes: int, rows: int) -> None:
    """Also with dropout, class weights, and fewer rows than processes; a batch of one row stays whole."""
    found, expected = trained(GradientParts(processes, Together()), rows), trained(GradientParts(processes), rows)

    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def changing_gradients(parts: GradientParts) -> list[Tensor]:
    """Gradients of one batch in training mode, in evaluation mode, with another loss, and in training mode again."""
    one, plain = recipe(), build_loss(TaskDefault(name="task-default"), "multi-class", OUTPUTS, torch.zeros(1))
    described = describe_network(DENSE, (COLUMNS, OUTPUTS, None), NAMES, plain, "cpu")
    other = Recipe(build=one.build, loss=plain, optimiser=one.optimiser, described=described)
    flat, found = one.build(), []
    flat.start(TENSORS, 0)
    for used, is_training in ((one, True), (one, False), (other, False), (one, True)):
        flat.network.train(is_training)
        torch.manual_seed(0)
        parts.gradient(flat, used, batch(8))
        assert flat.private.grad is not None
        found.append(flat.private.grad.clone())
    return found


def test_helpers_follow_another_mode_and_another_loss() -> None:
    """A network in evaluation mode draws no dropout, and a new description replaces a helper's network and loss."""
    found, expected = changing_gradients(GradientParts(2, Together())), changing_gradients(GradientParts(2))

    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert torch.equal(found[0], found[3])
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])


def test_each_part_and_each_step_draws_its_own_dropout() -> None:
    """Two seeds drop other values of the same rows, and so does the next step, until torch's generator returns."""
    own, found = recipe(), []
    flat = own.build()
    flat.start(TENSORS, 0)
    one, other = (part_gradient(flat, own.loss, batch(4), seed) for seed in (1, 2))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for is_again in (False, False, True):
        if is_again:
            torch.set_rng_state(before)
        GradientParts(2).gradient(flat, own, batch(8))
        assert flat.private.grad is not None
        found.append(flat.private.grad.clone())

    assert not torch.equal(one[1], other[1])
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(("rows", "count"), [(7, 2), (5, 3), (4, 4)])
def test_parts_keep_every_row_in_its_order(rows: int, count: int) -> None:
    """Joined again, the parts are the batch, and no part is empty."""
    parts = parts_of(batch(rows), count)

    assert len(parts) == count
    assert min(map(len, parts)) > 0
    assert torch.equal(torch.cat([part.features for part in parts]), batch(rows).features)
    assert torch.equal(torch.cat([part.targets for part in parts]), batch(rows).targets)


def order(*numbers: int) -> Tensor:
    """An order as rank 0 sends it, filled with zeros."""
    return torch.tensor([*numbers, *[0] * (6 - len(numbers))])


def described(**changes: Any) -> list[Tensor]:
    """The order to build a network, and its description with changes."""
    text = recipe().described
    assert text is not None
    changed = json.dumps(json.loads(text) | changes).encode()
    return [order(1, len(changed)), torch.frombuffer(bytearray(changed), dtype=torch.uint8)]


MALFORMED: dict[str, list[Tensor]] = {
    "an unknown order": [order(7)],
    "a negative order": [order(-1)],
    "an empty description": [order(1, 0)],
    "a description of many bytes": [order(1, 1 << 40)],
    "a negative description": [order(1, -5)],
    "a description that is no text": [order(1, 3), torch.tensor([255, 0, 1], dtype=torch.uint8)],
    "an unknown key": described(table="patients.csv"),
    "an unknown network": described(architecture={"name": "own"}),
    "a module of the hospital": described(architecture={"name": "named-tensors", "tensors": []}),
    "a parameter that the network lacks": described(federated=["nowhere"]),
    "no columns": described(columns=0),
    "many threads": described(threads=100_000),
    "an unknown device": described(device="tpu"),
    "an unknown attention": described(attention="fast"),
    "rows without a network": [order(2, 3)],
    "no rows": [*described(), order(2, 0)],
    "negative rows": [*described(), order(2, -3)],
    "more rows than memory": [*described(), order(2, MOST_NUMBERS)],
    "rows whose size overflows": [*described(), order(2, 1 << 62, 1 << 62)],
    "wide targets": [*described(), order(2, 1, MOST_NUMBERS)],
    "negative targets": [*described(), order(2, 1, -1)],
    "an unknown kind of target": [*described(), order(2, 1, 0, 2)],
    "an unknown mode": [*described(), order(2, 1, 0, 1, 5, 9)],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_helper_refuses_malformed_work(name: str) -> None:
    """It ends with an error of three sentences, and answers nothing."""
    mailbox = Mailbox(*MALFORMED[name], order(3))

    with pytest.raises(OperatorError) as refused:
        help_trainer(mailbox, 0)

    assert isinstance(refused.value, ProtocolError | ConfigurationError)
    assert "othing was sent to the coordinator." in refused.value.consequence
    assert not mailbox.outbox
    assert list(mailbox.inbox) != []


def test_a_helper_ends_when_the_trainer_does() -> None:
    """After a report that the trainer works, the end is no error, and a lost trainer is one."""
    help_trainer(Mailbox(order(0), *described(), order(3)), 0)

    with pytest.raises(UnavailableError, match="ended or did not answer"):
        help_trainer(Mailbox(order(0)), 0)


def test_a_helper_computes_attention_as_the_trainer() -> None:
    """The description names the kind of attention, and a helper without its package ends with an error."""
    try:
        if find_spec("llvmlite") is None or find_spec("site_agent.trainer.models.compiled_attention") is None:
            with pytest.raises(ConfigurationError, match="llvmlite is not installed"):
                help_trainer(Mailbox(order(0), *described(attention="compiled"), order(3)), 0)
        else:
            help_trainer(Mailbox(order(0), *described(attention="compiled"), order(3)), 0)
            assert chosen_attention() == "compiled"
    finally:
        help_trainer(Mailbox(order(0), *described(attention="torch"), order(3)), 0)
    assert chosen_attention() == "torch"


OPENED: list[object] = []
WATCHED: list[bool] = []
sys.addaudithook(lambda event, facts: OPENED.append(facts[0]) if WATCHED and event == "open" else None)


def test_a_helper_opens_no_file() -> None:
    """From the network's description to the gradient; the hook sees a file that this test opens."""
    together = Together()
    trained(GradientParts(2, together), 6)  # libraries load at their first use
    OPENED.clear()
    WATCHED.append(True)
    try:
        trained(GradientParts(2, Together()), 6)
        assert OPENED == []
        Path(os.devnull).read_bytes()
    finally:
        WATCHED.clear()

    assert [os.devnull] == OPENED


def test_reports_that_the_trainer_works_are_rare() -> None:
    """Once a minute each helper receives one, and at the end each receives the end."""
    now, together = [0.0], Together()
    parts = GradientParts(3, together, lambda: now[0])
    for second in range(150):
        now[0] = float(second)
        parts.beat()

    parts.end()

    kinds = [[int(tensor[0]) for tensor in together.mail[rank].inbox] for rank in (1, 2)]
    assert kinds == [[0, 0, 0, 3]] * 2


def test_a_stack_and_the_hospitals_own_module_stay_whole() -> None:
    """Another process could not build the module, and experiments alone train stacks."""
    own = recipe()
    stack = FlatNetwork(build_network(DENSE, COLUMNS, OUTPUTS), NAMES, copies=2)
    sizes = (COLUMNS, OUTPUTS, None)
    named = NamedTensors.model_construct(name="named-tensors")

    assert not GradientParts(2).gradient(stack, own, batch(6))
    assert describe_network(named, sizes, NAMES, own.loss, "cpu") is None
    assert not GradientParts(2).gradient(
        own.build(), Recipe(build=own.build, loss=own.loss, optimiser=own.optimiser), batch(6)
    )
