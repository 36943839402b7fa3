"""Lists everything that a site may send in a run, computed from the plan alone. This list is the manifest.

The gate refuses everything that the manifest does not list, and a hospital approves its digest. exchange.py decides
which parts are sent in a single round. Sites send updates in the manifest's order as one vector, followed by scalars as
64-bit integers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Final, NamedTuple, assert_never

import numpy as np
import numpy.typing as npt

from protos.errors import ConfigurationError
from protos.numbers.chunk_layout import Layout
from protos.numbers.newton_sums import NEWTON_SCALE
from protos.plan.architecture import FromFile, NamedTensors, TensorSpec, network_tensors
from protos.plan.canonical import digest
from protos.plan.compatibility import missing_parts
from protos.plan.ingredients import Nothing, SensitivePrefix, federated_tensors, layers_of
from protos.plan.initial_values import initial_values
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.plan.prior_sums import GUARD, GUARD_SCALE, LARGEST_ROW_LOSS, PRIOR_MOMENT_SCALE
from protos.plan.statistics_plan import StatisticsPlan
from protos.plan.weighting import EqualWeights, RowWeights
from protos.privacy.accounting import PRIVATE_SCALE
from protos.wire.messages import Stage

Float32 = npt.NDArray[np.float32]
Starts = Mapping[str, Float32]  # the values of a plan's starting file, by tensor name

ROWS: Final = "rows"  # the scalar that gives the updates their weight
LARGEST_LOSS: Final = 1024.0  # a larger validation loss counts as this value
LARGEST_SENSITIVITY: Final = 8.0
LOSS_SCALE: Final = 1 << 32
SENSITIVITY_SCALE: Final = 1 << 52  # sensitivities of 1e-12 still have four digits


class Scalar(NamedTuple):  # a plan can have a hundred thousand
    """A number that sites send as an integer. The number is the integer divided by `scale`, a power of two.

    `bound` is the integer's largest magnitude at one site, and only a signed integer can be negative. Those of the
    validation also leave in training rounds that begin with an epoch (exchange.py, `is_measured`).
    """

    name: str
    bound: int
    stage: Stage = Stage.TRAINING
    scale: int = 1
    is_signed: bool = False

    @property
    def lowest(self) -> int:
        return -self.bound if self.is_signed else 0


@dataclass(frozen=True)
class Manifest:
    """The data that one site may send in a run.

    Attributes:
        tensors: the federated parameters whose updates are sent, in the vector's order.
        scalars: the other sums that the method needs.
    """

    tensors: tuple[TensorSpec, ...]
    scalars: tuple[Scalar, ...]

    @cached_property
    def parameters(self) -> int:
        """Return the number of entries in the vector of all updates."""
        return sum(tensor.number_count for tensor in self.tensors)

    @cached_property
    def places(self) -> dict[str, slice]:
        """Return the place of each tensor in the vector of all updates, by its name."""
        return dict(zip((tensor.name for tensor in self.tensors), slices_of(self.tensors), strict=True))

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Return the names of the layers to which these tensors belong, in the network's order."""
        return tuple(dict.fromkeys(tensor.layer for tensor in self.tensors))

    @cached_property
    def canonical(self) -> bytes:
        """Return the manifest's names, shapes, bounds, scales and stages as JSON with sorted keys.

        Neighbouring scalars that differ only in their names are one entry.
        """
        content = {
            "tensors": [[tensor.name, list(tensor.shape)] for tensor in self.tensors],
            "scalars": [
                [[one.name for one in some], *same] for same, some in groupby(self.scalars, lambda one: one[1:])
            ],
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> bytes:
        """Return the SHA-256 (32 bytes) of the manifest's canonical bytes."""
        return digest("manifest", self.canonical)

    def views(self, vector: Float32) -> dict[str, Float32]:
        """Return the vector as named arrays, one for each tensor. All arrays use the memory of the vector.

        Args:
            vector: float32 of shape (parameters,).
        """
        return {tensor.name: vector[self.places[tensor.name]].reshape(tensor.shape) for tensor in self.tensors}

    def initial_parameters(self, seed: int) -> Float32:
        """Return the shared parameters before round 0, which are the same at the coordinator and at every site.

        Returns:
            float32 of shape (parameters,), in the manifest's order.
        """
        vector = np.empty(self.parameters, np.float32)
        for tensor, view in zip(self.tensors, self.views(vector).values(), strict=True):
            view[...] = initial_values(tensor, seed)
        return vector


def slices_of(tensors: tuple[TensorSpec, ...]) -> Iterator[slice]:
    """Yield the slice of each tensor in a vector that joins these tensors."""
    start = 0
    for tensor in tensors:
        yield slice(start, start + tensor.number_count)
        start += tensor.number_count


def manifest_of(plan: Plan, starts: Starts | None = None) -> Manifest:
    """Return the manifest: everything that the plan may require a site to send.

    Args:
        starts: the values of the plan's starting file; only needed to compute first values from this manifest.

    Raises:
        ConfigurationError: the architecture lacks the parts that the method federates.
    """
    match plan:
        case StatisticsPlan():
            return Manifest(tensors=(), scalars=tuple(_statistics_scalars(plan)))
        case PriorPlan():
            return Manifest(tensors=(), scalars=tuple(_prior_scalars(plan)))
        case NetworkPlan():
            return _manifest_of_network(plan, starts)
        case _:
            assert_never(plan)


def _manifest_of_network(plan: NetworkPlan, starts: Starts | None) -> Manifest:
    tensors = _federated_tensors(plan)
    if not tensors and not isinstance(plan.ingredients.federated, Nothing):
        missing = missing_parts(plan.ingredients, plan.architecture)
        lacks = f": it has no part {' and no part '.join(missing)}" if missing else ""
        raise ConfigurationError(
            what=f"The network {plan.architecture.name} has no layer that {plan.method_name} could share{lacks}.",
            consequence="Nothing was trained and nothing was sent.",
            remedy="Choose another method, or a network with the parts that the method shares. Methods and networks "
            "are listed in docs/researcher.md.",
        )
    return Manifest(tensors=started(plan, tensors, starts), scalars=tuple(_scalars(plan, tensors)))


def starting_tensors(plan: NetworkPlan) -> tuple[TensorSpec, ...]:
    """Return the shared and frozen tensors whose first values are in the plan's starting file.

    Raises:
        ConfigurationError: the plan names a layer that is neither shared nor frozen.
    """
    if plan.starting_file is None:
        return ()
    frozen = plan.architecture.frozen if isinstance(plan.architecture, NamedTensors) else ()
    found, layers = (*_federated_tensors(plan), *frozen), plan.starting_file.layers
    private = set(layers or ()) - {tensor.layer for tensor in found}
    if private or not found:
        names = f"named {', '.join(sorted(private))}" if private else "that starts from the file"
        raise ConfigurationError(
            what=f"The plan has no shared or frozen layer {names}.",
            consequence="Nothing was trained and nothing was sent.",
            remedy="Name shared or frozen layers under start. Private layers start from each site's secret.",
        )
    return tuple(tensor for tensor in found if layers is None or tensor.layer in layers)


def started(plan: NetworkPlan, tensors: Iterable[TensorSpec], starts: Starts | None) -> tuple[TensorSpec, ...]:
    """Return the tensors with the values of the plan's starting file.

    Tensors that do not start from it stay unchanged.
    """
    names, known = {tensor.name for tensor in starting_tensors(plan)}, starts or {}
    return tuple(
        replace(tensor, initial=FromFile(known.get(tensor.name))) if tensor.name in names else tensor
        for tensor in tensors
    )


def _federated_tensors(plan: NetworkPlan) -> tuple[TensorSpec, ...]:
    # If the plan lets each site choose a size, only a private part depends on that size. So a placeholder is enough.
    network = network_tensors(
        plan.architecture,
        columns=plan.placeholder_columns,
        outputs=plan.outputs or 1,
        common=len(plan.shared_columns) or None,
    )
    return federated_tensors(plan.ingredients.federated, network, plan.seed)


def _scalars(plan: NetworkPlan, tensors: tuple[TensorSpec, ...]) -> Iterator[Scalar]:
    """Yield every scalar that the plan allows sites to send. Scalars of one round are in the order of the vector."""
    weight, method = largest_weight(plan), plan.ingredients
    if (training := plan.private_training) is not None:
        for name in training.names:
            yield Scalar(name, training.bound, scale=PRIVATE_SCALE, is_signed=True)
    match plan.weighting:
        case EqualWeights():
            pass
        case RowWeights(largest_rows=largest):
            yield Scalar(ROWS, largest)
        case other:
            assert_never(other)
    if isinstance(method.federated, SensitivePrefix):
        # The last layer is never federated, but the rise to it is measured too.
        for number in range(len(layers_of(tensors)) + 1):
            bound = int(LARGEST_SENSITIVITY) * SENSITIVITY_SCALE
            yield Scalar(f"sensitivity {number + 1}", bound, Stage.PROBE, SENSITIVITY_SCALE)
    if plan.has_validation_round:
        yield Scalar("validation weight", weight, Stage.VALIDATION)
        yield Scalar("validation loss", int(LARGEST_LOSS) * LOSS_SCALE, Stage.VALIDATION, LOSS_SCALE)


def _statistics_scalars(plan: StatisticsPlan) -> Iterator[Scalar]:
    stages = (Stage.STATISTICS, Stage.NEWTON, Stage.GUARD)
    for stage, numbers in zip(stages, plan.numbers_by_round, strict=True):
        for one in numbers:
            yield Scalar(one.name, one.bound, stage, one.scale, is_signed=one.is_signed)


def _prior_scalars(prior: PriorPlan) -> Iterator[Scalar]:
    rows = prior.largest_rows
    if prior.private is not None:
        for name in prior.private.names:
            yield Scalar(name, prior.private.bound, Stage.STATISTICS, PRIVATE_SCALE, is_signed=True)
        return
    for name in prior.statistics_names:
        kind = name.partition(" ")[0]
        # For classes a sum is a count. For columns and numbers it is a sum of values between 0 and 1.
        is_count = kind in ("count", "outcomes", "patients") or (name.startswith("sum outcome") and not prior.is_number)
        scale = 1 if is_count or kind == "voids" else PRIOR_MOMENT_SCALE
        yield Scalar(name, 1 if kind == "voids" else rows * scale, Stage.STATISTICS, scale)
    for name in prior.newton_names:
        share = prior.largest_weight if name.startswith("hessian") else 1.0
        bound = int(rows * share * NEWTON_SCALE)
        yield Scalar(name, bound, Stage.NEWTON, NEWTON_SCALE, is_signed=True)
    yield Scalar(GUARD, rows * LARGEST_ROW_LOSS * GUARD_SCALE, Stage.GUARD, GUARD_SCALE, is_signed=True)


def largest_weight(plan: NetworkPlan) -> int:
    """Return the largest weight of a site as an integer. A site's factor is its weight divided by this integer."""
    return plan.weighting.largest_rows if isinstance(plan.weighting, RowWeights) else 1


def rounds_with(plan: Plan, stage: Stage) -> int:
    """Return the largest number of rounds in which sites send the scalars of this stage."""
    if stage is Stage.VALIDATION:
        assert isinstance(plan, NetworkPlan)  # no other plan has such scalars
        return (plan.schedule.rounds - 1) // plan.schedule.rounds_per_measurement + plan.has_validation_round
    return plan.training_rounds if stage in (Stage.TRAINING, Stage.NEWTON) else 1


def most_bytes(plan: Plan, manifest: Manifest) -> int:
    """Return the largest number of bytes that a site sends in the run. Repeated transmissions are not counted."""
    trained, updates = plan.training_rounds, 0 if plan.privacy is not None else manifest.parameters
    layouts = trained * Layout(updates, 0, plan.bits).total_bytes + (plan.rounds - trained) * Layout(0, 0).total_bytes
    alike = Counter(scalar.stage for scalar in manifest.scalars)
    return layouts + sum(8 * rounds_with(plan, stage) * count for stage, count in alike.items())
