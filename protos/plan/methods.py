"""Lists all methods of network plans. averaging_methods.py and personal_methods.py define them."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias, get_args

from pydantic import Field

from protos.plan import averaging_methods as averaging
from protos.plan import personal_methods as personal

MethodChoice: TypeAlias = Annotated[
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
    get_args(choice.model_fields["name"].annotation)[0] for choice in get_args(get_args(MethodChoice)[0])
)

FEDERATED_PRIOR: Final = "federated-prior"  # the name of a prior plan in policies, reports and results
# The names that a hospital's policy can use.
METHOD_NAMES: Final[tuple[str, ...]] = (*NETWORK_METHODS, FEDERATED_PRIOR)
