"""Computes the gradient of a batch in parts, if the site started the trainer with several processes.

The process with rank 0 is the trainer. It alone reads files. All other processes are helpers: rank 0 sends them a
network, parameters and the rows of one part, and they return the gradient of this part. Rank 0 adds the gradients. The
rules:

* a part's gradient depends only on the part, the parameters and a seed. So it has the same bits in every process;
* rank 0 adds the parts in their order, each weighted by its share of the batch;
* a helper opens no file, and keeps nothing but the network that rank 0 described last;
* a process checks every size before it reserves memory, and limits every wait. Nothing is unpickled;
* a batch stays whole if its rows depend on one another, if it trains a stack of copies, or if its network is the
  hospital's own module, because only a file could describe that network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Final, Literal, Protocol, TypeAlias

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from protos.errors import ConfigurationError, ProtocolError, UnavailableError
from protos.plan.architecture import Architecture, NamedTensors
from protos.plan.documents import LARGEST_DOCUMENT_BYTES, Document
from site_agent.trainer.data.contract import Task
from site_agent.trainer.models.attention import choose_attention, chosen_attention
from site_agent.trainer.models.network_catalogue import build_network
from site_agent.trainer.pulse import LONG_SECONDS
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.torch_losses import LossFunction
from site_agent.trainer.training.training_model import Recipe, whole_gradient

_BEAT, _NETWORK, _GRADIENT, _END = range(4)
# The most numbers in the rows of one part, 1 GiB in float32. Rank 0 computes larger batches alone.
MOST_NUMBERS: Final = 1 << 28
_SEEDS: Final = 1 << 62
_BEAT_SECONDS: Final = 60.0
_END_SECONDS: Final = 10.0
# Torch's own limit for an exchange. Under systemd the watchdog of the trainer's service ends a hanging trainer earlier.
EXCHANGE_SECONDS: Final = 1800.0
# Rank 0 sends nothing while it reads a table or fits a forest, which is limited to LONG_SECONDS.
SILENCE_SECONDS: Final = LONG_SECONDS + EXCHANGE_SECONDS


# A function that waits at most this many seconds.
Wait: TypeAlias = Callable[[float], None]


class Channel(Protocol):
    """Passes tensors on the CPU between processes. Both functions raise UnavailableError if a process is lost."""

    def begin_send(self, tensor: Tensor, rank: int, /) -> Wait:
        """Start to send a tensor. Return a function that waits until the tensor is sent."""

    def receive(self, into: Tensor, rank: int, seconds: float, /) -> None:
        """Wait at most this many seconds for a tensor of exactly this shape and type."""


class DescribedNetwork(Document):
    """The settings from which a helper builds a network with its loss, as rank 0 sends them in JSON.

    `federated` names the shared parameters, which are stored in one flat tensor in this order. `gamma` and
    `class_weights` are those of the loss. `threads` are the threads of one operation, and `attention` is the kind of
    attention, both as at rank 0.
    """

    architecture: Architecture
    columns: int = Field(ge=1)
    outputs: int = Field(ge=1)
    common: int | None
    federated: tuple[str, ...]
    task: Task
    gamma: float
    class_weights: tuple[float, ...] | None
    threads: int = Field(ge=1, le=256)
    device: Literal["cpu", "cuda"]
    attention: Literal["torch", "compiled"]


def describe_network(
    architecture: Architecture,
    sizes: tuple[int, int, int | None],
    federated: Sequence[str],
    loss: LossFunction,
    device: str,
) -> bytes | None:
    """Return the description of a network for other processes, or None if only this process can build the network.

    `sizes` are the network's columns and outputs, and the columns that all sites have.
    """
    if isinstance(architecture, NamedTensors):
        return None
    columns, outputs, common = sizes
    text = DescribedNetwork.model_validate(
        {
            "architecture": architecture,
            "columns": columns,
            "outputs": outputs,
            "common": common,
            "federated": tuple(federated),
            "task": loss.task,
            "gamma": loss.gamma,
            "class_weights": None if loss.weights is None else tuple(loss.weights.tolist()),
            "threads": torch.get_num_threads(),
            "device": device,
            "attention": chosen_attention(),
        }
    ).model_dump_json()
    found = text.encode()
    return found if len(found) <= LARGEST_DOCUMENT_BYTES else None


def parts_of(batch: Rows, count: int) -> list[Rows]:
    """Cut a batch into `count` parts of nearly equal size, in the order of the rows. Each part has a row or more.

    The parts are copies. A view would start at another place in memory, where a library may round differently.
    """
    features, targets = batch.features.tensor_split(count), batch.targets.tensor_split(count)
    return [Rows(x.clone(), y.clone()) for x, y in zip(features, targets, strict=True)]


def part_gradient(flat: FlatNetwork, loss: LossFunction, part: Rows, seed: int) -> list[Tensor]:
    """Return the gradient of the part's mean loss for each of `stretches`. The seed alone determines its dropout."""
    is_card = flat.device.type == "cuda"
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if is_card else []):
        torch.manual_seed(seed)
        whole_gradient(flat, loss, part.to(flat.device))
    return [gradient.clone() for gradient in flat.gradients]


class GradientParts:
    """Computes gradients in parts at rank 0, with helpers or, without a channel, one part after another."""

    def __init__(self, count: int, channel: Channel | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare `count` parts. With a channel, the processes 1 to `count - 1` are helpers."""
        self._count, self._channel, self._clock = count, channel, clock
        self._described: dict[int, bytes] = {}
        self._next_beat = 0.0

    @property
    def helpers(self) -> int:
        """The number of other processes that compute parts."""
        return 0 if self._channel is None else self._count - 1

    def gradient(self, flat: FlatNetwork, recipe: Recipe, batch: Rows) -> bool:
        """Set the network's gradients and return True, or return False if the batch must stay whole.

        Draw one seed for each part from torch's generator. Raise UnavailableError if a helper is lost.
        """
        described, count = recipe.described, min(self._count, len(batch))
        numbers = batch.features.numel() + batch.targets.numel()
        if described is None or flat.copies is not None or count < 2 or numbers > MOST_NUMBERS:
            return False
        parts = parts_of(batch, count)
        seeds = torch.randint(_SEEDS, (count,), device=flat.device).tolist()
        gradients = self._gradients(flat, recipe.loss, described, list(zip(parts, seeds, strict=True)))
        whole = recipe.loss.divisor(batch.targets)
        shares = [recipe.loss.divisor(part.targets) / whole if whole else 0.0 for part in parts]
        for number, total in enumerate(flat.gradients):
            torch.mul(gradients[0][number], shares[0], out=total)
            for share, found in zip(shares[1:], gradients[1:], strict=True):
                total.add_(found[number], alpha=share)
        return True

    def beat(self) -> None:
        """Report to the helpers that this process is working, at most once a minute."""
        if self._channel is not None and self._clock() >= self._next_beat:
            self._next_beat = self._clock() + _BEAT_SECONDS
            self._tell_all(_Order(_BEAT), EXCHANGE_SECONDS)

    def end(self) -> None:
        """End the helper processes. It is not an error if a helper has already ended."""
        if self._channel is not None:
            with suppress(UnavailableError):
                self._tell_all(_Order(_END), _END_SECONDS)

    def _tell_all(self, order: _Order, seconds: float) -> None:
        assert self._channel is not None
        for rank in range(1, self._count):
            self._channel.begin_send(order.as_tensor(), rank)(seconds)

    def _gradients(
        self, flat: FlatNetwork, loss: LossFunction, described: bytes, parts: list[tuple[Rows, int]]
    ) -> list[list[Tensor]]:
        """Return each part's gradient. Rank 0 computes the first part while the helpers compute the others."""
        if self._channel is None:
            return [part_gradient(flat, loss, part, seed) for part, seed in parts]
        sent = [self._begin(rank, flat, described, *parts[rank]) for rank in range(1, len(parts))]
        found = [part_gradient(flat, loss, *parts[0])]
        for wait in (wait for waits in sent for wait in waits):
            wait(EXCHANGE_SECONDS)
        for rank in range(1, len(parts)):
            arrived = [torch.empty(stretch.shape) for stretch in flat.stretches]
            for into in arrived:
                self._channel.receive(into, rank, EXCHANGE_SECONDS)
            found.append([into.to(flat.device) for into in arrived])
        return found

    def _begin(self, rank: int, flat: FlatNetwork, described: bytes, part: Rows, seed: int) -> list[Wait]:
        tensors: list[Tensor] = []
        if self._described.get(rank) != described:
            self._described[rank] = described
            text = torch.frombuffer(bytearray(described), dtype=torch.uint8)
            tensors += [_Order(_NETWORK, len(described)).as_tensor(), text]
        width = 0 if part.targets.dim() == 1 else part.targets.shape[1]
        order = _Order(_GRADIENT, len(part), width, not part.targets.is_floating_point(), seed, flat.network.training)
        tensors += [order.as_tensor(), *(stretch.data.cpu() for stretch in flat.stretches)]
        tensors += [part.features.cpu(), part.targets.cpu()]
        assert self._channel is not None
        return [self._channel.begin_send(tensor, rank) for tensor in tensors]


@dataclass(frozen=True)
class _Order:
    """What a helper does next: six numbers, int64. `_BEAT` needs no action.

    `length` is the bytes of a description, or the rows of a part. `target_width` is the numbers of a row's target, 0 if
    targets have one axis. `has_class_numbers` is whether targets are int64 and not float32. `seed` is that of the
    part's dropout. `is_training` is whether the network is in training mode.
    """

    kind: int
    length: int = 0
    target_width: int = 0
    has_class_numbers: int = 0
    seed: int = 0
    is_training: int = 0

    def as_tensor(self) -> Tensor:
        return torch.tensor([int(number) for number in astuple(self)])


def help_trainer(channel: Channel, local_rank: int) -> None:
    """Compute parts for rank 0 until rank 0 ends. With `device: cuda` use the graphics card number `local_rank`.

    Raises:
        ProtocolError: rank 0 sent work that no trainer of this version sends.
        UnavailableError: rank 0 is lost.
    """
    helper = _Helper(channel, local_rank)
    while helper.follow():
        pass


class _Helper:
    """One process without files, which computes the part that rank 0 sends."""

    def __init__(self, channel: Channel, local_rank: int) -> None:
        self._channel, self._local_rank = channel, local_rank
        self._network: tuple[DescribedNetwork, FlatNetwork, LossFunction] | None = None

    def follow(self) -> bool:
        """Carry out the next order of the first process. Return whether more orders follow."""
        numbers = torch.zeros(len(astuple(_Order(_BEAT))), dtype=torch.int64)
        self._channel.receive(numbers, 0, SILENCE_SECONDS)
        order = _Order(*numbers.tolist())
        match order.kind:
            case 0:  # _BEAT
                return True
            case 1:  # _NETWORK
                self._build(order.length)
                return True
            case 2:  # _GRADIENT
                self._compute(order)
                return True
            case 3:  # _END
                return False
            case _:
                raise _malformed(f"the order {order.kind}")

    def _build(self, length: int) -> None:
        if not 0 < length <= LARGEST_DOCUMENT_BYTES:
            raise _malformed(f"a network's description of {length} bytes; {LARGEST_DOCUMENT_BYTES} are allowed")
        text = torch.zeros(length, dtype=torch.uint8)
        self._channel.receive(text, 0, EXCHANGE_SECONDS)
        try:
            described = DescribedNetwork.model_validate_json(text.numpy().tobytes())
            device = self._device(described.device)
            network = build_network(described.architecture, described.columns, described.outputs, described.common)
            flat = FlatNetwork(network, described.federated, device=device)
        except (ValidationError, ValueError, KeyError) as cause:
            raise _malformed("a description that describes no network") from cause
        torch.set_num_threads(described.threads)
        choose_attention(described.attention)
        weights = None if described.class_weights is None else torch.tensor(described.class_weights)
        self._network = described, flat, LossFunction(task=described.task, gamma=described.gamma, weights=weights)

    def _device(self, kind: str) -> str:
        if kind == "cpu":
            return kind
        if self._local_rank >= torch.cuda.device_count():
            raise ConfigurationError(
                what=f"torchrun started a process for graphics card {self._local_rank}, counted from 0. PyTorch finds "
                f"{torch.cuda.device_count()} graphics cards here.",
                consequence="Training did not continue. Nothing was sent to the coordinator.",
                remedy="Set --nproc-per-node to the number of graphics cards, and let the service use each card.",
            )
        torch.cuda.set_device(self._local_rank)
        return f"cuda:{self._local_rank}"

    def _compute(self, order: _Order) -> None:
        if self._network is None:
            raise _malformed("rows without a network")
        described, flat, loss = self._network
        width = max(order.target_width, 1)
        # Each factor is checked first, so that the product is an exact number of ordinary size.
        if not (0 < order.length <= MOST_NUMBERS and 0 <= order.target_width <= MOST_NUMBERS):
            raise _malformed(f"{order.length} rows with targets of {order.target_width} numbers")
        numbers = order.length * (described.columns + width)
        if numbers > MOST_NUMBERS:
            raise _malformed(f"rows with {numbers} numbers; {MOST_NUMBERS} are allowed")
        if {order.has_class_numbers, order.is_training} - {0, 1}:
            raise _malformed("an unknown kind of target or network")
        for stretch in flat.stretches:
            values = torch.zeros(stretch.shape)
            self._channel.receive(values, 0, EXCHANGE_SECONDS)
            stretch.data.copy_(values)
        features = torch.zeros(order.length, described.columns)
        shape = (order.length, order.target_width) if order.target_width else (order.length,)
        targets = torch.zeros(shape, dtype=torch.int64 if order.has_class_numbers else torch.float32)
        for rows in (features, targets):
            self._channel.receive(rows, 0, EXCHANGE_SECONDS)
        flat.network.train(bool(order.is_training))
        found = part_gradient(flat, loss, Rows(features, targets), order.seed)
        for wait in [self._channel.begin_send(gradient.cpu(), 0) for gradient in found]:
            wait(EXCHANGE_SECONDS)


def _malformed(what: str) -> ProtocolError:
    return ProtocolError(
        what=f"The first process of the trainer (rank 0) sent a message that this process cannot use: {what}.",
        consequence="This process did not use the message, and ended. Nothing was sent to the coordinator.",
        remedy="Install the same version of the program on every computer. Check that no other program can connect "
        "to the processes of the trainer.",
    )


def lost_process() -> UnavailableError:
    """Return the error for a process that does not answer."""
    return UnavailableError(
        what="A process of the trainer ended or did not answer.",
        consequence="The trainer stopped. Its saved states are unchanged. Nothing more was sent to the coordinator.",
        remedy=(
            "If the trainer's service does not start again by itself, start it. Then the trainer continues from its "
            "saved state. If this happens again, look in the system journal for the process that ended first."
        ),
    )
