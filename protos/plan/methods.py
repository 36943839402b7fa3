"""Lists all methods, and combines several methods of a plan into one method.

averaging_methods.py and personal_methods.py define the methods. A composition takes from each of its methods the
ingredients that differ from FedAvg's: `of: [{name: global-layers}, {name: fedprox}]` is the proximal term with Global
Layers. Two methods that set the same ingredient to different values are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal, Self, TypeAlias, TypeVar, get_args

from pydantic import Field, model_validator

from protos.plan import averaging_methods as averaging
from protos.plan import personal_methods as personal
from protos.plan.documents import Document, refuse_for
from protos.plan.ingredients import Method

Value = TypeVar("Value")

SingleMethod: TypeAlias = Annotated[
    personal.GlobalLayers
    | personal.CHFL
    | personal.PLayerFL
    | personal.PLayerFLRandom
    | personal.FendaFL
    | personal.PerFCL
    | averaging.FederatedAveraging
    | averaging.FedProx
    | averaging.FedAdam
    | averaging.FedYogi
    | averaging.FedAdagrad
    | averaging.Scaffold
    | averaging.Moon
    | personal.FedPer
    | personal.FedRep
    | personal.FedBABU
    | personal.LocalAdaptation
    | personal.Ditto
    | personal.PFedMe
    | personal.APFL
    | personal.FedBN
    | personal.LocalGlobal
    | averaging.LocalOnly,
    Field(discriminator="name"),
]

# The methods that train a network. They are read from the definitions, so none can be missing.
NETWORK_METHODS: Final[tuple[str, ...]] = tuple(
    get_args(choice.model_fields["name"].annotation)[0] for choice in get_args(get_args(SingleMethod)[0])
)

FEDERATED_PRIOR: Final = "federated-prior"  # the name of a prior plan in policies, reports and results
# The names that a hospital's policy can use.
METHOD_NAMES: Final[tuple[str, ...]] = (*NETWORK_METHODS, FEDERATED_PRIOR)


class Composition(Document):
    """A combination of several methods. Each method contributes the parts in which the method differs from FedAvg."""

    name: Literal["composition"]
    of: tuple[SingleMethod, ...] = Field(min_length=2, max_length=8)

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse_for(self._clashes())
        return self

    def method(self) -> Method:
        """Return one record that combines the parts in which the named methods differ from FedAvg."""
        made = [choice.method() for choice in self.of]
        plain = Method()
        return Method(
            federated=_one([method.federated for method in made], plain.federated),
            procedure=_one([method.procedure for method in made], plain.procedure),
            server_rule=_one([method.server_rule for method in made], plain.server_rule),
            penalties=tuple(penalty for method in made for penalty in method.penalties),
            update_rate=_one([method.update_rate for method in made], plain.update_rate),
            fine_tuning_epochs=_one([method.fine_tuning_epochs for method in made], plain.fine_tuning_epochs),
            starts_equal=_one([method.starts_equal for method in made], plain.starts_equal),
        )

    def _clashes(self) -> Iterator[str]:
        """Yield one clause for each reason why the methods cannot be combined."""
        alone = [choice.name for choice in self.of if isinstance(choice, averaging.LocalOnly)]
        if alone:
            yield f"{alone[0]} shares nothing of a network, so nothing can be composed with it"
            return
        named, plain = [(choice.name, choice.method()) for choice in self.of], Method()
        penalties = [type(penalty) for _, method in named for penalty in method.penalties]
        if len(set(penalties)) != len(penalties):
            yield "two methods add the same penalty; leave one of them out"
        for decides, values, default in (
            ("which parameters are federated", [m.federated for _, m in named], plain.federated),
            ("how a site trains in one round", [m.procedure for _, m in named], plain.procedure),
            ("how the coordinator uses the aggregate", [m.server_rule for _, m in named], plain.server_rule),
            ("how a site takes in shared values", [m.update_rate for _, m in named], plain.update_rate),
            ("the fine-tuning at the end", [m.fine_tuning_epochs for _, m in named], plain.fine_tuning_epochs),
            ("which private parts start equal", [m.starts_equal for _, m in named], plain.starts_equal),
        ):
            deciders = [(name, value) for (name, _), value in zip(named, values, strict=True) if value != default]
            for name, value in deciders[1:]:
                if value != deciders[0][1]:
                    yield f"{deciders[0][0]} and {name} both say {decides}; leave one of them out"


MethodChoice: TypeAlias = Annotated[Composition | SingleMethod, Field(discriminator="name")]


def method_names(choice: MethodChoice) -> tuple[str, ...]:
    """Return the names of a plan's methods: one, or several combined. A policy must allow each of them."""
    return tuple(part.name for part in choice.of) if isinstance(choice, Composition) else (choice.name,)


def _one(values: Sequence[Value], plain: Value) -> Value:
    """Return the value that differs from FedAvg's value, or FedAvg's value if none differs."""
    return next((value for value in values if value != plain), plain)
