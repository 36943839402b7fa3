"""Decides which tensors and scalars of the manifest sites send and receive in one round.

Both programs compute the exchange from the plan and the offer, so neither can make the other use a different one. The
rules:

* sites send only parts of the approved manifest;
* after PLayer-FL's probe all rounds share the same layers. Other layers are neither received nor sent;
* an offer that the method does not allow is a MalformedMessage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from protos.numbers.chunk_layout import Layout
from protos.plan.announcing_plan import AnnouncingPlan
from protos.plan.architecture import TensorSpec
from protos.plan.ingredients import SensitivePrefix
from protos.plan.initial_values import initial_values
from protos.plan.manifest import ROWS, Manifest, Scalar
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.plan_head import FITTING
from protos.wire.messages import MalformedMessage, Stage

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Exchange:
    """The numbers that a site and the coordinator exchange in one round.

    Attributes:
        layers: the manifest's layers that take part, as encoded in an offer.
        down: the tensors whose values a site receives, in the manifest's order.
        has_controls: whether control variates of the same tensors follow these values.
        up: the tensors whose updates a site sends, in the manifest's order.
        scalars: the integers that a site sends after the updates.
        bits: of an update.
        own_numbers: sums of private layers with noise. The trainer sends them to the gate after the scalars. The gate
            returns their total in later rounds. They never leave the site.
    """

    stage: Stage
    layers: bytes
    down: tuple[TensorSpec, ...]
    has_controls: bool
    up: tuple[TensorSpec, ...]
    scalars: tuple[Scalar, ...]
    bits: int = 32
    own_numbers: int = 0

    @cached_property
    def down_parameters(self) -> int:
        """Return the number of parameters that sites receive. Control variates are not counted."""
        return sum(tensor.number_count for tensor in self.down)

    @cached_property
    def down_numbers(self) -> int:
        """Return how many numbers sites receive: the parameters and, if the method has them, the control variates."""
        return self.down_parameters * (2 if self.has_controls else 1)

    @cached_property
    def updates(self) -> int:
        """Return the number of updates that sites send."""
        return sum(tensor.number_count for tensor in self.up)

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.updates, len(self.scalars), self.bits)

    @cached_property
    def scalar_names(self) -> tuple[str, ...]:
        return tuple(scalar.name for scalar in self.scalars)

    @cached_property
    def scalar_limits(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the smallest and the largest value of each scalar at one site."""
        return tuple(scalar.lowest for scalar in self.scalars), tuple(scalar.bound for scalar in self.scalars)

    @cached_property
    def rows_place(self) -> int | None:
        """Return the position of the row count in the list of scalars, or None if no row count is sent."""
        return self.scalar_names.index(ROWS) if ROWS in self.scalar_names else None

    @cached_property
    def counted_scalars(self) -> int:
        """Return the number of scalars that the trainer computes. These are all scalars except the row count."""
        return len(self.scalars) - (self.rows_place is not None)


def pack_layers(chosen: tuple[bool, ...]) -> bytes:
    """Encode which layers take part in a round: one bit for each layer, the first layer as the lowest.

    Empty means all layers.
    """
    return b"" if all(chosen) else np.packbits(np.array(chosen, dtype=bool), bitorder="little").tobytes()


def unpack_layers(layers: bytes, count: int) -> tuple[bool, ...]:
    """Decode the layers that `pack_layers` encoded, for a manifest with this number of layers.

    Raises:
        MalformedMessage: the bytes are no result of `pack_layers`.
    """
    if not layers:
        return (True,) * count
    bits = np.unpackbits(np.frombuffer(layers, np.uint8), bitorder="little").astype(bool)
    chosen = tuple(bool(bit) for bit in bits[:count])
    if pack_layers(chosen) != layers:
        raise MalformedMessage("layers that the manifest does not have")
    return chosen


def stage_at(plan: Plan, round_number: int, training_rounds: int | None = None) -> Stage | None:
    """Return the purpose of a round, or None after the last round.

    Args:
        round_number: from 0.
        training_rounds: the number of training rounds if the run stopped early; None means the schedule's number.
    """
    place = round_number
    for stage, most in plan.stages:
        count = training_rounds if stage in FITTING and training_rounds is not None else most
        if place < count:
            return stage
        place -= count
    return None


def is_measured(plan: Plan, round_number: int) -> bool:
    """Return whether sites validate the model at the start of a training round, except for the first round."""
    made = round_number - plan.has_probe
    return isinstance(plan, NetworkPlan) and made > 0 and made % plan.schedule.rounds_per_measurement == 0


class Exchanges:
    """Computes the exchanges of a plan, which are the contents of its rounds. Each exchange is computed only once."""

    def __init__(self, plan: Plan, manifest: Manifest) -> None:
        self._plan, self._manifest = plan, manifest
        self._made: dict[tuple[Stage, bytes, bool, int], Exchange] = {}

    def start_digest(self, exchange: Exchange) -> bytes:
        """Return the BLAKE3 digest of the values that sites receive first: the plan's first values and zero controls.

        The digest is computed one tensor at a time, so the program never needs the memory of a second model.

        Args:
            exchange: of the probe, of the statistics, or of the first training round.

        Returns:
            32 bytes, equal to `parameters_digest` of the whole vector.
        """
        digest = blake3()
        for tensor in exchange.down:
            digest.update(initial_values(tensor, self._plan.seed).reshape(-1).view(np.uint8).data)
        if exchange.has_controls:
            for tensor in exchange.down:
                digest.update(bytes(4 * tensor.number_count))
        return bytes(digest.digest())

    def result(self, layers: bytes) -> tuple[TensorSpec, ...]:
        """Return the tensors that sites receive with the last sum.

        Raises:
            MalformedMessage: the method cannot choose these layers.
        """
        chosen = unpack_layers(layers, len(self._manifest.layers))
        if not self._may_be_shared(chosen):
            raise MalformedMessage("layers that the method does not choose")
        return (self._plan.tensor,) if isinstance(self._plan, AnnouncingPlan) else self._tensors(chosen)

    def of(self, round_number: int, stage: Stage, layers: bytes) -> Exchange:
        """Return what sites receive and send in this round.

        Args:
            round_number: from 0.
            layers: the layers that take part, as encoded by `pack_layers`.

        Raises:
            MalformedMessage: the plan allows no such round.
        """
        chosen = unpack_layers(layers, len(self._manifest.layers))
        if not self._is_due(round_number, stage):
            raise MalformedMessage("a round that the plan does not have")
        is_whole = stage in (Stage.PROBE, Stage.STATISTICS, Stage.NEWTON, Stage.GUARD)
        if not (all(chosen) if is_whole else self._may_be_shared(chosen)):
            raise MalformedMessage("layers that the method does not choose")
        if isinstance(self._plan, AnnouncingPlan):
            offered, rounds = self._plan.tensors_before(round_number), round_number
        else:
            offered, rounds = self._tensors(chosen), 0
        key = (stage, layers, stage is Stage.TRAINING and is_measured(self._plan, round_number), rounds)
        if key not in self._made:
            self._made[key] = self._make(stage, layers, offered, measures=key[2])
        return self._made[key]

    def _is_due(self, round_number: int, stage: Stage) -> bool:
        planned = stage_at(self._plan, round_number)
        if stage is planned:
            return True
        first, last = self._plan.stages[0][0], self._plan.stages[-1][0]
        is_early = self._plan.may_end_early and planned in FITTING and round_number > (first not in FITTING)
        return is_early and stage is last and stage not in FITTING

    def _may_be_shared(self, chosen: tuple[bool, ...]) -> bool:
        if isinstance(self._plan.ingredients.federated, SensitivePrefix):
            return chosen[0] and list(chosen) == sorted(chosen, reverse=True)
        return all(chosen)

    def _tensors(self, chosen: tuple[bool, ...]) -> tuple[TensorSpec, ...]:
        if all(chosen):
            return self._manifest.tensors
        layers = set(compress(self._manifest.layers, chosen))
        return tuple(tensor for tensor in self._manifest.tensors if tensor.layer in layers)

    def _make(self, stage: Stage, layers: bytes, offered: tuple[TensorSpec, ...], *, measures: bool) -> Exchange:
        stages = (stage, Stage.VALIDATION) if measures else (stage,)
        is_training = stage is Stage.TRAINING
        sends_changes = is_training and self._plan.privacy is None  # private training sends sums of gradients instead
        down = () if stage is Stage.PROBE else offered
        return Exchange(
            stage=stage,
            layers=layers,
            down=down,
            has_controls=is_training and self._plan.ingredients.has_controls,
            up=offered if sends_changes else (),
            scalars=tuple(scalar for scalar in self._manifest.scalars if scalar.stage in stages),
            bits=self._plan.bits,
            own_numbers=self._plan.own_numbers if is_training else 0,
        )
