"""Decides which parts of methods cannot be combined, and why. All other combinations are allowed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from protos.plan.architecture import (
    Architecture,
    ColumnsNetwork,
    DenseNetwork,
    GlobalLayersNetwork,
    NamedTensors,
    ParallelConvolutionalNetwork,
    ParallelNetwork,
    Part,
    network_tensors,
    note_columns,
)
from protos.plan.ingredients import (
    AllButNormalisation,
    ColumnByColumn,
    Contrastive,
    Controlled,
    ControlVariates,
    Everything,
    ExtractorContrast,
    FederatedOnly,
    InnerProblem,
    KeptLayersMean,
    LayerIntervals,
    Layers,
    Method,
    Mixture,
    Nothing,
    Parts,
    Penalty,
    PersonalCopy,
    Prefix,
    PrivateFirst,
    SensitivePrefix,
)
from protos.plan.networks.convolutional_networks import flat_width

Size: TypeAlias = Literal["columns", "outputs"]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The parts of a plan that restrict which methods the plan can use.

    Attributes:
        is_plain_descent: the optimiser steps by rate times gradient, without other terms.
        has_constant_rate: the learning rate never changes.
        has_equal_weights: every site has the same weight.
        has_whole_epochs: every round ends with an epoch at every site.
        training_rounds: the number of aggregations in the schedule.
        ends_early: training can end before the last round of the schedule.
        measures: the choice of a checkpoint or the end of training depends on measurements of all sites.
    """

    architecture: Architecture
    is_plain_descent: bool
    has_constant_rate: bool
    has_equal_weights: bool
    has_whole_epochs: bool
    training_rounds: int
    ends_early: bool
    measures: bool


def missing_parts(method: Method, architecture: Architecture) -> tuple[Part, ...]:
    """Return the parts that a method shares and that the network does not have.

    A network of two layers has no body. That is allowed if the method also shares another part.
    """
    if not isinstance(method.federated, Parts):
        return ()
    there = {tensor.part for tensor in network_tensors(architecture, columns=2, outputs=1, common=1)}
    missing = tuple(part for part in method.federated.parts if part not in there)
    return () if missing == (Part.BODY,) and len(method.federated.parts) > 1 else missing


def agreed_sizes(method: Method, architecture: Architecture) -> frozenset[Size]:
    """Return which sizes a plan must list for all sites, because the shape of a shared tensor depends on them."""
    parts, federated = method.federated_parts, method.federated

    def shapes(columns: int, outputs: int) -> list[tuple[int, ...]]:
        columns += note_columns(architecture)
        network = network_tensors(architecture, columns=columns + 1, outputs=outputs, common=columns)
        if isinstance(federated, Layers):
            return [tensor.shape for tensor in network if tensor.layer in federated.names]
        return [tensor.shape for tensor in network if tensor.part in parts]

    others: dict[Size, list[tuple[int, ...]]] = {"columns": shapes(3, 2), "outputs": shapes(2, 3)}
    usual = shapes(2, 2)
    return frozenset(key for key, found in others.items() if found != usual)


def why_impossible(method: Method, conditions: Conditions) -> tuple[str, ...]:
    """Return every reason why a method is impossible under these conditions, each as a short text."""
    checks = (_of_network, _of_private, _of_procedure, _of_controls, _of_layers, _of_penalties, _of_nothing)
    return tuple(dict.fromkeys(reason for check in checks for reason in check(method, conditions)))


def _of_network(method: Method, conditions: Conditions) -> Iterator[str]:
    network = conditions.architecture
    if isinstance(network, ColumnsNetwork) and isinstance(method.federated, Everything):
        yield "the unique column of the network columns differs between sites, so not everything can be federated"
    # This applies to the method local too: a site needs the plan's list to distinguish common columns from its own.
    if isinstance(network, ColumnsNetwork) != isinstance(method.procedure, ColumnByColumn):
        yield "training column by column needs the network columns, which has a common and a unique column"
    branches = isinstance(network, ParallelNetwork | ParallelConvolutionalNetwork | ColumnsNetwork)
    if isinstance(method.federated, SensitivePrefix | Prefix):
        if branches:
            yield f"the layers of the network {network.name} do not follow one another, so they have no prefix"
        if isinstance(network, NamedTensors) and network.layers != "sequence":
            yield "the layers of a hospital's own network have a prefix only if the plan has layers: sequence"
    if isinstance(method.federated, Prefix) and (wanted := method.federated.layers) is not None:
        count = len({tensor.layer for tensor in network_tensors(network, columns=2, outputs=1, common=1)})
        if wanted >= count:
            yield f"{wanted} layers cannot be shared: the network has {count}, and at least the last one stays private"
    if isinstance(method.federated, Layers):
        yield from _of_named_layers(method.federated.names, network)
    has_path = isinstance(network, GlobalLayersNetwork) and network.linear_path
    if isinstance(method.federated, SensitivePrefix | Prefix) and has_path:
        yield "with a linear path beside the layers the last layer is not the one that decides, so there is no prefix"


def _of_named_layers(names: tuple[str, ...], network: Architecture) -> Iterator[str]:
    """Yield each reason to refuse a list of layer names: an unknown name, or a list of all layers."""
    if isinstance(network, NamedTensors):
        yield "the network named-tensors itself lists the shared tensors, so the method cannot name layers too"
        return
    there = list(dict.fromkeys(tensor.layer for tensor in network_tensors(network, columns=2, outputs=1, common=1)))
    missing = [name for name in names if name not in there]
    if missing:
        yield f"the network {network.name} has no {', '.join(missing)}; its layers are {', '.join(there)}"
    if set(there) <= set(names):
        yield f"all layers of the network {network.name} would be federated, so nothing would stay private"


def _of_private(method: Method, conditions: Conditions) -> Iterator[str]:
    """Yield the reasons why a method for private layers would keep no layer private, and so would equal FedAvg."""
    network, federated, parts = conditions.architecture, method.federated, method.federated_parts
    tensors = network_tensors(network, columns=2, outputs=1, common=1)
    if isinstance(federated, AllButNormalisation) and not any(tensor.is_normalisation for tensor in tensors):
        yield f"the network {network.name} has no tensor known as a normalisation, so none would stay private"
    # For a hospital's own module the plan lists only the federated tensors, not the private ones.
    is_whole = not isinstance(network, NamedTensors) and all(tensor.part in parts for tensor in tensors)
    if isinstance(federated, Parts) and is_whole:
        yield f"all layers of the network {network.name} would be federated, so nothing would stay private"


def _of_procedure(method: Method, conditions: Conditions) -> Iterator[str]:
    has_private = not isinstance(method.federated, Everything)
    if isinstance(method.procedure, PrivateFirst | FederatedOnly) and not has_private:
        yield "no parameter is private, so there is nothing to train apart from the federated ones"
    if isinstance(method.procedure, PrivateFirst) and not conditions.has_whole_epochs:
        yield (
            "private parameters train for whole epochs, so a round has to be made of whole epochs; "
            "set aggregate to every-epoch or every-round"
        )
    if isinstance(method.procedure, PersonalCopy | Mixture | InnerProblem) and method.update_rate != 1.0:
        yield "a personal model is compared with the shared values, so the site must load all of them unchanged"
    if isinstance(method.procedure, ColumnByColumn) and method.penalties:
        yield "the common column trains on its own loss alone, so no penalty is possible"
    if isinstance(method.procedure, InnerProblem) and method.penalties:
        yield "the inner problem has a proximal term of its own, so no other penalty is possible"


def _of_controls(method: Method, conditions: Conditions) -> Iterator[str]:
    if isinstance(method.procedure, ControlVariates) != isinstance(method.server_rule, Controlled):
        yield "control variates need the coordinator's rule that keeps their mean, and that rule needs them"
    if not isinstance(method.procedure, ControlVariates):
        return
    if not conditions.is_plain_descent:
        yield (
            "control variates are mean gradients only under plain sgd, without momentum and weight decay; "
            "set optimiser to {name: sgd, learning_rate: ...}"
        )
    if not conditions.has_constant_rate:
        yield "control variates divide by the learning rate, which has to be constant; leave rate_schedule out"
    if not conditions.has_equal_weights:
        yield (
            "control variates are averaged with equal weights, so the plan has to weigh the sites equally; "
            "set weighting to {name: equal}"
        )
    if method.penalties:
        yield "the control variate would include the gradient of the penalty"
    if method.update_rate != 1.0:
        yield "a site that keeps a part of its own values has no gradient sum to control"


def _of_layers(method: Method, conditions: Conditions) -> Iterator[str]:
    rule = method.server_rule
    if isinstance(rule, KeptLayersMean | LayerIntervals) and isinstance(method.federated, SensitivePrefix):
        yield "two methods would both choose the layers of a round"
    if isinstance(rule, KeptLayersMean | LayerIntervals) and method.update_rate != 1.0:
        yield "layers can be left out only if a site loads all shared values unchanged"
    if not isinstance(rule, LayerIntervals):
        return
    if conditions.training_rounds % rule.slow_factor:
        yield (
            f"{conditions.training_rounds} rounds are no multiple of slow_factor {rule.slow_factor}, "
            "so the last round could not aggregate all layers; "
            f"plan {conditions.training_rounds + rule.slow_factor - conditions.training_rounds % rule.slow_factor}"
        )
    if conditions.ends_early:
        yield "training that may end early could end before slow layers are aggregated"


def _of_penalties(method: Method, conditions: Conditions) -> Iterator[str]:
    network = conditions.architecture
    for penalty in method.penalties:
        if isinstance(network, NamedTensors):
            yield from _of_representations(penalty, network.representations)
        elif isinstance(penalty, ExtractorContrast):
            if not isinstance(network, ParallelNetwork | ParallelConvolutionalNetwork):
                yield "the contrast of two extractors needs the network parallel, which has them"
            elif _width(network, network.common) != _width(network, network.unique):
                yield "the two extractors are compared with one another, so their last widths have to be equal"
        if isinstance(penalty, Contrastive) and isinstance(network, DenseNetwork) and not network.hidden:
            yield "a network without hidden layers decides on its inputs, and a contrast cannot change inputs"


def _of_representations(penalty: Penalty, representations: int) -> Iterator[str]:
    needed = 2 if isinstance(penalty, ExtractorContrast) else 1 if isinstance(penalty, Contrastive) else 0
    if representations < needed:
        yield (
            f"the contrast compares {needed} of the representations of a hospital's own network; "
            f"set representations in the architecture to {needed}, and let the module have represent and decide"
        )


def _of_nothing(method: Method, conditions: Conditions) -> Iterator[str]:
    if isinstance(method.federated, Nothing) and conditions.measures:
        yield "a site that trains alone chooses alone, so checkpoint and early stopping cannot follow all sites"


def _width(network: ParallelNetwork | ParallelConvolutionalNetwork, layers: tuple[int, ...]) -> int:
    return layers[-1] if isinstance(network, ParallelNetwork) else flat_width(network.image, layers)
