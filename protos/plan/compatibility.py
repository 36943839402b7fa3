"""Decides which methods a plan cannot have with its network, schedule, optimiser and weighting, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from protos.plan.architecture import (
    Architecture,
    ColumnsNetwork,
    DenseNetwork,
    NamedTensors,
    ParallelNetwork,
    Part,
    network_tensors,
)
from protos.plan.ingredients import (
    AllButNormalisation,
    ColumnByColumn,
    Contrastive,
    ControlVariates,
    Everything,
    ExtractorContrast,
    Method,
    Nothing,
    Parts,
    Penalty,
    Prefix,
    PrivateFirst,
    SensitivePrefix,
)
from protos.plan.optimisers import Optimiser, is_plain_descent
from protos.plan.schedules import Schedule
from protos.plan.weighting import Weighting

Size: TypeAlias = Literal["columns", "outputs"]


def missing_parts(method: Method, architecture: Architecture) -> tuple[Part, ...]:
    """Return the parts of a network that a method shares but that this network does not have.

    A network of two layers has no body. That is allowed if the method also shares another part.
    """
    if not isinstance(method.federated, Parts):
        return ()
    there = {tensor.part for tensor in network_tensors(architecture, columns=2, outputs=1, common=1)}
    missing = tuple(part for part in method.federated.parts if part not in there)
    return () if missing == (Part.BODY,) and len(method.federated.parts) > 1 else missing


def agreed_sizes(method: Method, architecture: Architecture) -> frozenset[Size]:
    """Return the sizes (columns, outputs) that a plan must list, because shapes of shared tensors depend on them."""
    parts = method.federated_parts

    def shapes(columns: int, outputs: int) -> list[tuple[int, ...]]:
        network = network_tensors(architecture, columns=columns + 1, outputs=outputs, common=columns)
        return [tensor.shape for tensor in network if tensor.part in parts]

    others: dict[Size, list[tuple[int, ...]]] = {"columns": shapes(3, 2), "outputs": shapes(2, 3)}
    usual = shapes(2, 2)
    return frozenset(key for key, found in others.items() if found != usual)


def why_impossible(
    method: Method,
    network: Architecture,
    schedule: Schedule,
    optimiser: Optimiser,
    weighting: Weighting,
    *,
    measures: bool,
) -> tuple[str, ...]:
    """Return every reason why a method is impossible in a plan with these settings, each as a short text.

    Args:
        measures: the choice of a checkpoint depends on measurements of all sites.
    """
    reasons = [*_of_network(method, network), *_of_private(method, network), *_of_penalty(method.penalty, network)]
    if isinstance(method.procedure, PrivateFirst) and schedule.aggregate not in ("every-epoch", "every-round"):
        reasons.append(
            "the method trains private parameters for whole epochs, so a round must consist of whole epochs. Set "
            "aggregate to every-epoch or every-round"
        )
    if isinstance(method.procedure, ControlVariates):
        reasons += _of_controls(optimiser, weighting)
    if isinstance(method.federated, Nothing) and measures:
        reasons.append("with this method each site trains alone, so the plan cannot have checkpoint: global")
    return tuple(dict.fromkeys(reasons))


def _of_network(method: Method, network: Architecture) -> Iterator[str]:
    if isinstance(network, ColumnsNetwork) and isinstance(method.federated, Everything):
        yield (
            "in the network columns each site has layers of its own (the unique column), so a method cannot share "
            "all layers"
        )
    # This applies to the method local too: a site needs the plan's list to distinguish common columns from its own.
    if isinstance(network, ColumnsNetwork) != isinstance(method.procedure, ColumnByColumn):
        yield "a method that trains column by column (chfl) and the network columns can only be used together"
    has_order = not isinstance(network, ParallelNetwork | ColumnsNetwork | NamedTensors)
    if isinstance(method.federated, SensitivePrefix | Prefix) and not has_order:
        yield f"the method shares the first layers, but the layers of the network {network.name} have no order"
    if isinstance(method.federated, Prefix) and (wanted := method.federated.layers) is not None:
        count = len({tensor.layer for tensor in network_tensors(network, columns=2, outputs=1, common=1)})
        if wanted >= count:
            yield (
                f"the method would share {wanted} layers, but the network has {count} layers and at least the last "
                "layer must stay private"
            )


def _of_private(method: Method, network: Architecture) -> Iterator[str]:
    federated, parts = method.federated, method.federated_parts
    tensors = network_tensors(network, columns=2, outputs=1, common=1)
    if isinstance(federated, AllButNormalisation) and not any(tensor.is_normalisation for tensor in tensors):
        yield (
            f"the method keeps normalisation layers private, but the network {network.name} has no tensor of a known "
            "normalisation layer"
        )
    # For a hospital's own module the plan lists only the federated tensors, not the private ones.
    is_whole = not isinstance(network, NamedTensors) and all(tensor.part in parts for tensor in tensors)
    if isinstance(federated, Parts) and is_whole:
        yield f"the method would share all layers of the network {network.name}, so no layer would stay private"


def _of_controls(optimiser: Optimiser, weighting: Weighting) -> Iterator[str]:
    if not is_plain_descent(optimiser):
        yield (
            "control variates need the optimiser sgd without momentum and without weight decay. Set optimiser to "
            "{name: sgd, learning_rate: ...}"
        )
    if weighting.name != "equal":
        yield (
            "control variates are averaged with equal weights, so all sites must have the same weight. Set weighting "
            "to {name: equal}"
        )


def _of_penalty(penalty: Penalty | None, network: Architecture) -> Iterator[str]:
    if isinstance(network, NamedTensors):
        if isinstance(penalty, Contrastive | ExtractorContrast):
            yield "the method compares inner results, which a hospital's own network does not show"
    elif isinstance(penalty, ExtractorContrast):
        if not isinstance(network, ParallelNetwork):
            yield "the method compares two extractors, so the plan needs a network with two extractors (parallel)"
        elif network.common[-1] != network.unique[-1]:
            yield (
                "the method compares the two extractors of the network, so both extractors must have outputs of "
                "the same width"
            )
    if isinstance(penalty, Contrastive) and isinstance(network, DenseNetwork) and not network.hidden:
        yield "the contrastive penalty compares outputs of hidden layers, but this network has no hidden layers"
