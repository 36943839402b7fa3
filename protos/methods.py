"""The catalogue of methods, and their composition.

Each method is one small definition in averaging_methods.py or personal_methods.py. A composition takes
from each of its methods what it says differently from FedAvg: `of: [{name: global-layers}, {name: fedprox}]`
is the proximal term with Global Layers. Two methods that speak of the same ingredient are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self, TypeAlias, TypeVar, get_args

from pydantic import Field, model_validator

from protos.averaging_methods import (
    FedAdagrad,
    FedAdam,
    FederatedAveraging,
    FedLAMA,
    FedLP,
    FedProx,
    FedYogi,
    LocalOnly,
    Moon,
    Scaffold,
)
from protos.documents import Document
from protos.ingredients import Method
from protos.personal_methods import (
    APFL,
    CHFL,
    Ditto,
    FedBABU,
    FedBN,
    FedPer,
    FedRep,
    FendaFL,
    GlobalLayers,
    LocalAdaptation,
    LocalGlobal,
    PerFCL,
    PFedMe,
    PLayerFL,
    PLayerFLRandom,
)

Value = TypeVar("Value")

SingleMethod: TypeAlias = Annotated[
    GlobalLayers
    | CHFL
    | PLayerFL
    | PLayerFLRandom
    | FendaFL
    | PerFCL
    | FederatedAveraging
    | FedProx
    | FedAdam
    | FedYogi
    | FedAdagrad
    | Scaffold
    | Moon
    | FedLP
    | FedLAMA
    | FedPer
    | FedRep
    | FedBABU
    | LocalAdaptation
    | Ditto
    | PFedMe
    | APFL
    | FedBN
    | LocalGlobal
    | LocalOnly,
    Field(discriminator="name"),
]

# What a hospital's policy may name; from the definitions themselves, so that neither can lack one.
METHOD_NAMES: Final[tuple[str, ...]] = tuple(
    get_args(choice.model_fields["name"].annotation)[0] for choice in get_args(get_args(SingleMethod)[0])
)


class Composition(Document):
    """Several methods at once, each giving what it says differently from FedAvg."""

    name: Literal["composition"]
    of: tuple[SingleMethod, ...] = Field(min_length=2, max_length=8)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(isinstance(choice, LocalOnly) for choice in self.of):
            raise ValueError("local shares nothing, so nothing can be composed with it")
        self.method()
        return self

    def method(self) -> Method:
        """The method made of its methods' ingredients.

        Raises:
            ValueError: two of them decide the same thing differently.
        """
        named = [(choice.name, choice.method()) for choice in self.of]
        penalties = tuple(penalty for _, method in named for penalty in method.penalties)
        if len({type(penalty) for penalty in penalties}) != len(penalties):
            raise ValueError("two methods add the same penalty; leave one of them out")
        plain = Method()
        return Method(
            federated=_one("which parameters are federated", [(n, m.federated) for n, m in named], plain.federated),
            procedure=_one("how a site trains in one round", [(n, m.procedure) for n, m in named], plain.procedure),
            server_rule=_one(
                "how the coordinator uses the aggregate", [(n, m.server_rule) for n, m in named], plain.server_rule
            ),
            penalties=penalties,
            update_rate=_one(
                "how a site takes in shared values", [(n, m.update_rate) for n, m in named], plain.update_rate
            ),
            fine_tuning_epochs=_one(
                "the fine-tuning at the end", [(n, m.fine_tuning_epochs) for n, m in named], plain.fine_tuning_epochs
            ),
            starts_equal=_one(
                "which private parts start equal", [(n, m.starts_equal) for n, m in named], plain.starts_equal
            ),
        )


MethodChoice: TypeAlias = Annotated[Composition | SingleMethod, Field(discriminator="name")]


def method_names(choice: MethodChoice) -> tuple[str, ...]:
    """The catalogue's names in a plan's choice: one, or those of a composition. A policy has to allow each."""
    return tuple(part.name for part in choice.of) if isinstance(choice, Composition) else (choice.name,)


def _one(decides: str, named: Sequence[tuple[str, Value]], plain: Value) -> Value:
    """The ingredient that is not FedAvg's, where some method has one and no two differ."""
    chosen = [(name, value) for name, value in named if value != plain]
    for name, value in chosen[1:]:
        if value != chosen[0][1]:
            raise ValueError(f"{chosen[0][0]} and {name} both say {decides}; leave one of them out")
    return chosen[0][1] if chosen else plain
