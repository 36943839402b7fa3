"""What methods are made of.

A method says which parameters are federated, how a site takes in the shared values, and by which
rule the coordinator turns the aggregate into the next federated parameters. Each ingredient is a
frozen record; a choice among them is a union that one `match` takes apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

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


Federated: TypeAlias = Everything | Parts | Nothing


@dataclass(frozen=True)
class Mean:
    """Next parameters: the received ones plus the weighted mean of the sites' changes."""


ServerRule: TypeAlias = Mean


@dataclass(frozen=True, kw_only=True)
class Method:
    """A federated algorithm as a value.

    Attributes:
        federated: which parameters travel.
        server_rule: aggregate to next federated parameters.
        update_rate: the weight of the shared value when a site takes it in; the site's own value
            has one minus it. Global Layers' eta; 1 overwrites.
    """

    federated: Federated
    server_rule: ServerRule
    update_rate: float = 1.0
