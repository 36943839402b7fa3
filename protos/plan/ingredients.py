"""Defines the parts of federated methods, such as server rules, local procedures and penalties.

A method chooses the federated parameters, the training at a site in one round, the penalty on its loss, the way it
loads shared values, and the coordinator's rule for the next parameters. Each ingredient is a frozen record, and a
choice among them is a union. The default is FedAvg's ingredient.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, assert_never

from protos.plan.architecture import Part, TensorSpec
from protos.plan.canonical import digest


@dataclass(frozen=True)
class Everything:
    """All parameters are federated, so sites need equal columns and equal outputs."""


@dataclass(frozen=True)
class Parts:
    """The named parts are federated, all others are private."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Nothing:
    """No parameter is federated. Each site trains alone, with the same number of rounds."""


@dataclass(frozen=True)
class AllButNormalisation:
    """Everything is federated except the weights and biases of normalisations, which stay private."""


@dataclass(frozen=True)
class SensitivePrefix:
    """The layers from the input to the first sharp rise of the measured sensitivity are federated. PLayer-FL.

    After one local epoch F_l = sum over layers k <= l of the mean over k's parameters of (value * gradient)^2. Then p =
    min {p : F_(p+1) / F_p > threshold}. Layers up to p are federated, or all but the last if no ratio exceeds the
    threshold. F is summed over the sites, so each site sends it masked.
    """

    threshold: float


@dataclass(frozen=True)
class Prefix:
    """The first `layers` layers are shared, never the last. If `layers` is None, the plan's seed draws their number."""

    layers: int | None = None


Federated: TypeAlias = Everything | Parts | AllButNormalisation | SensitivePrefix | Prefix | Nothing


@dataclass(frozen=True)
class Together:
    """Every step trains all parameters, on the task's loss and the penalty."""


@dataclass(frozen=True)
class PrivateFirst:
    """In each round, first train the private parameters for this many epochs, then the federated parameters."""

    epochs: int


@dataclass(frozen=True)
class FederatedOnly:
    """Private parameters keep their initial values until the fine-tuning."""


@dataclass(frozen=True)
class PersonalCopy:
    """A second model v trains on the task's loss + strength / 2 * ||v - received||^2.

    The federated model trains too.
    """

    strength: float


@dataclass(frozen=True)
class Mixture:
    """Each site also trains a model v. It predicts with share * v + (1 - share) * its version of the federated model.

    APFL. v trains on the mixture's loss. The share begins at `start` and takes one step of `rate` a round.
    """

    start: float
    rate: float


@dataclass(frozen=True)
class InnerProblem:
    """In each batch, t approximately minimises loss + strength / 2 * ||t - w||^2 after `steps` optimiser steps. pFedMe.

    Then w moves by rate * strength * (t - w). The site predicts with t and sends w.
    """

    strength: float
    steps: int
    rate: float


@dataclass(frozen=True)
class ControlVariates:
    """In SCAFFOLD, every gradient g of the federated parameters becomes g + c - c_i.

    c_i starts at 0 and becomes c_i - c + (received - own) / (steps * learning rate) after each round.
    """


@dataclass(frozen=True)
class ColumnByColumn:
    """Each batch trains the common column on this column's loss, then the unique column on the joint loss. CHFL."""


Procedure: TypeAlias = (
    Together | PrivateFirst | FederatedOnly | PersonalCopy | Mixture | InnerProblem | ControlVariates | ColumnByColumn
)


@dataclass(frozen=True)
class Mean:
    """Next parameters: the received parameters plus the weighted mean of the sites' updates."""


class Moment(StrEnum):
    """The formula by which an adaptive rule averages the squares of past mean updates d in v."""

    ADAM = "adam"  # v = second_decay * v + (1 - second_decay) * d^2
    YOGI = "yogi"  # v = v - (1 - second_decay) * sign(v - d^2) * d^2
    ADAGRAD = "adagrad"  # v = v + d^2


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """The coordinator takes an optimiser step along the mean update d. Source: Reddi et al. 2021, algorithm 2.

    m = first_decay * m + (1 - first_decay) * d; v by `moment`; x += rate * m / (sqrt(v) + offset). There is no bias
    correction, as in FENDA-FL's algorithm 1; m and v begin at 0.
    """

    moment: Moment
    rate: float
    offset: float
    first_decay: float
    second_decay: float


@dataclass(frozen=True)
class Controlled:
    """SCAFFOLD: x moves by rate * mean update, and c by contributors / sites * mean change of the sites' c_i.

    A site's change of c_i is -c - update / (steps * learning rate). So c follows from the mean update, and the sites
    send only updates to the coordinator.
    """

    rate: float


ServerRule: TypeAlias = Mean | Adaptive | Controlled


@dataclass(frozen=True)
class Proximal:
    """strength / 2 * ||own - received||^2 over the federated parameters. Li et al. 2020, eq. 2."""

    strength: float


@dataclass(frozen=True, kw_only=True)
class Contrastive:
    """strength * con(z; z of the received model; z of the site's model of the last round). Li et al. 2021, eq. 3, 4.

    con(z; a; b) is the cross-entropy of [cos(z, a), cos(z, b)] / temperature with label 0; z is the input of the
    network's last layer. The first round has no earlier model, so it skips this penalty.
    """

    strength: float
    temperature: float


@dataclass(frozen=True, kw_only=True)
class ExtractorContrast:
    """Adds PerFCL's two terms, computed from the outputs of the common and the unique extractor, to the loss.

    common_strength * con(z_c; received z_c; last round's own z_c) + unique_strength * con(z_u; last round's own z_u;
    received z_c). The first round skips them.
    """

    common_strength: float
    unique_strength: float
    temperature: float


Penalty: TypeAlias = Proximal | Contrastive | ExtractorContrast


@dataclass(frozen=True, kw_only=True)
class Method:
    """A federated method as a record of its parts. Each default is the part that FedAvg has.

    Attributes:
        procedure: the training at a site in one round.
        server_rule: the step from the aggregate to the next federated parameters.
        penalty: a term that a site adds to its loss in training, never in choosing a checkpoint.
        update_rate: the weight of the shared value when a site loads it. The site's own value has one minus it. Global
            Layers' eta; 1 overwrites.
        fine_tuning_epochs: epochs of all parameters of the chosen model, at the site, after the last round.
        starts_equal: parts that start from the plan's seed at every site, even if they are private.
    """

    federated: Federated = Everything()
    procedure: Procedure = Together()
    server_rule: ServerRule = Mean()
    penalty: Penalty | None = None
    update_rate: float = 1.0
    fine_tuning_epochs: int = 0
    starts_equal: tuple[Part, ...] = ()

    @property
    def federated_parts(self) -> tuple[Part, ...]:
        """Return the parts of the network whose parameters can be shared."""
        match self.federated:
            case Everything() | AllButNormalisation() | SensitivePrefix() | Prefix():
                return tuple(Part)
            case Parts(parts=parts):
                return parts
            case Nothing():
                return ()
            case _:
                assert_never(self.federated)

    @property
    def proximal_strength(self) -> float:
        """Return the strength of the proximal term or of pFedMe's inner problem; 0 for all other methods."""
        if isinstance(self.procedure, InnerProblem):
            return self.procedure.strength
        return self.penalty.strength if isinstance(self.penalty, Proximal) else 0.0

    @property
    def has_controls(self) -> bool:
        """Return whether sites receive control variates with the parameters."""
        return isinstance(self.procedure, ControlVariates)


def federated_tensors(federated: Federated, network: tuple[TensorSpec, ...], seed: int) -> tuple[TensorSpec, ...]:
    """Return the tensors of a network that a method shares, in the network's order.

    Args:
        federated: a method's choice. For a sensitive prefix, all layers that can be chosen are returned.
        seed: the plan's seed, which draws the length of a random prefix.
    """
    match federated:
        case Nothing():
            return ()
        case Parts(parts=parts):
            missing = [part for part in parts if part not in {tensor.part for tensor in network}]
            # A network of two layers has no body between input and head. FedPer shares its input nevertheless.
            return () if missing and missing != [Part.BODY] else tuple(t for t in network if t.part in parts)
        case Everything():
            return network
        case AllButNormalisation():
            return tuple(tensor for tensor in network if not tensor.is_normalisation)
        case SensitivePrefix():
            return _prefix(network, len(layers_of(network)) - 1)
        case Prefix(layers=int(layers)):
            return _prefix(network, layers)
        case Prefix():
            number = len(layers_of(network)) - 1
            drawn = int.from_bytes(digest("random prefix", seed)[:8], "little") % max(1, number)
            return _prefix(network, min(number, 1 + drawn))
        case other:
            assert_never(other)


def layers_of(tensors: tuple[TensorSpec, ...]) -> tuple[str, ...]:
    """Return the names of the layers to which these tensors belong, each once, in the order of the tensors."""
    return tuple(dict.fromkeys(tensor.layer for tensor in tensors))


def _prefix(tensors: tuple[TensorSpec, ...], layers: int) -> tuple[TensorSpec, ...]:
    chosen = layers_of(tensors)[:layers]
    return tuple(tensor for tensor in tensors if tensor.layer in chosen)
