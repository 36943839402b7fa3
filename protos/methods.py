"""The catalogue of methods, and their composition.

Each method is one small definition in averaging_methods.py or personal_methods.py. A composition takes
from each of its methods what it says differently from FedAvg: `of: [{name: global-layers}, {name: fedprox}]`
is the proximal term with Global Layers. Two methods that speak of the same ingredient are refused.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args

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

# What each ingredient decides, in the words of the refusal of two methods that both decide it.
_DECIDES: Final = {
    "federated": "which parameters are federated",
    "procedure": "how a site trains in one round",
    "server_rule": "how the coordinator uses the aggregate",
    "update_rate": "how a site takes in shared values",
    "fine_tuning_epochs": "the fine-tuning at the end",
    "starts_equal": "which private parts start equal",
}


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
        chosen: dict[str, Any] = {}
        by: dict[str, str] = {}
        for choice in self.of:
            for name, value in _differences(choice.method()):
                if chosen.setdefault(name, value) != value:
                    raise ValueError(f"{by[name]} and {choice.name} both say {_DECIDES[name]}; leave one of them out")
                by.setdefault(name, choice.name)
        penalties = tuple(penalty for choice in self.of for penalty in choice.method().penalties)
        if len({type(penalty) for penalty in penalties}) != len(penalties):
            raise ValueError("two methods add the same penalty; leave one of them out")
        return Method(penalties=penalties, **chosen)


MethodChoice: TypeAlias = Annotated[Composition | SingleMethod, Field(discriminator="name")]


def method_names(choice: MethodChoice) -> tuple[str, ...]:
    """The catalogue's names in a plan's choice: one, or those of a composition. A policy has to allow each."""
    return tuple(part.name for part in choice.of) if isinstance(choice, Composition) else (choice.name,)


def _differences(method: Method) -> list[tuple[str, Any]]:
    """The ingredients, penalties apart, that are not FedAvg's."""
    plain = Method()
    names = [item.name for item in fields(Method) if item.name != "penalties"]
    return [(name, getattr(method, name)) for name in names if getattr(method, name) != getattr(plain, name)]
