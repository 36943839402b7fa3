"""What methods are made of.

A method says which parameters are federated, how a site takes in the shared values, and by which
rule the coordinator turns the aggregate into the next federated parameters. Each ingredient is a
frozen record; a choice among them is a union that one `match` takes apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, assert_never

from protos.architecture import Part


@dataclass(frozen=True)
class Everything:
    """All parameters are federated; sites then need equal columns and equal outputs."""


@dataclass(frozen=True)
class Parts:
    """The named parts are federated, all others are private."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Nothing:
    """No parameter is federated: the site trains alone, in step with the others."""


@dataclass(frozen=True)
class AllButNormalisation:
    """Everything except the weights and biases of normalisations, which stay private."""


Federated: TypeAlias = Everything | Parts | AllButNormalisation | Nothing


@dataclass(frozen=True)
class Mean:
    """Next parameters: the received ones plus the weighted mean of the sites' changes."""


class Moment(StrEnum):
    """How an adaptive rule keeps the size of past mean changes d in v."""

    ADAM = "adam"  # v = second_decay * v + (1 - second_decay) * d^2
    YOGI = "yogi"  # v = v - (1 - second_decay) * sign(v - d^2) * d^2
    ADAGRAD = "adagrad"  # v = v + d^2


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """An optimiser step of the coordinator along the mean change d. Reddi et al. 2021, algorithm 2.

    m = first_decay * m + (1 - first_decay) * d; v by `moment`; x += rate * m / (sqrt(v) + offset).
    No bias correction, as in FENDA-FL's algorithm 1; m and v begin at 0.
    """

    moment: Moment
    rate: float
    offset: float
    first_decay: float
    second_decay: float


ServerRule: TypeAlias = Mean | Adaptive


@dataclass(frozen=True)
class Proximal:
    """strength / 2 * ||own - received||^2 over the federated parameters. Li et al. 2020, eq. 2."""

    strength: float


Penalty: TypeAlias = Proximal


@dataclass(frozen=True, kw_only=True)
class Method:
    """A federated algorithm as a value.

    Attributes:
        federated: which parameters travel.
        server_rule: aggregate to next federated parameters.
        penalties: terms that a site adds to its loss in training, never in choosing a checkpoint.
        update_rate: the weight of the shared value when a site takes it in; the site's own value
            has one minus it. Global Layers' eta; 1 overwrites.
    """

    federated: Federated
    server_rule: ServerRule
    penalties: tuple[Penalty, ...] = ()
    update_rate: float = 1.0

    @property
    def federated_parts(self) -> tuple[Part, ...]:
        """The parts of the network of which parameters travel."""
        match self.federated:
            case Everything() | AllButNormalisation():
                return tuple(Part)
            case Parts(parts=parts):
                return parts
            case Nothing():
                return ()
            case _:
                assert_never(self.federated)
