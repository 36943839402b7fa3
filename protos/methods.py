"""The catalogue of methods: one short definition each, with its source.

The fields of a definition are the method's hyperparameters as they stand in a plan, so a misspelt
one is refused where it is written.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args

from pydantic import Field

from protos.architecture import Part
from protos.documents import Document
from protos.ingredients import (
    Adaptive,
    AllButNormalisation,
    Everything,
    Federated,
    Mean,
    Method,
    Moment,
    Nothing,
    Parts,
    Proximal,
)


class GlobalLayers(Document):
    """Private input and output layers around shared inner layers.

    Source: Obeidi, "Global Layers: Non-IID Tabular Federated Learning", BatchAlignedFedAvg. The
    schedule of the plan says after how many batches the sites aggregate.
    """

    name: Literal["global-layers"]
    update_rate: float = Field(default=1.0, gt=0, le=1)

    def method(self) -> Method:
        """The method made of its ingredients."""
        return Method(federated=Parts((Part.BODY,)), server_rule=Mean(), update_rate=self.update_rate)


class FederatedAveraging(Document):
    """One model for all sites. McMahan et al. 2017, algorithm 1.

    Sites with different columns are aligned by the plan's list of encoded columns; what a site
    does not record is zero there, as the Global Layers paper does for its baseline.
    """

    name: Literal["fedavg"]

    def method(self) -> Method:
        """The method made of its ingredients."""
        return Method(federated=Everything(), server_rule=Mean())


class FedProx(Document):
    """FedAvg that holds each site near what it received. Li et al. 2020, eq. 2.

    `federates: body` keeps input and output layers private: the proximal term with Global Layers.
    """

    name: Literal["fedprox"]
    strength: float = Field(default=0.01, gt=0, le=1e6)
    federates: Literal["everything", "body"] = "everything"

    def method(self) -> Method:
        """The method made of its ingredients."""
        return Method(federated=_all_or_body(self.federates), server_rule=Mean(), penalties=(Proximal(self.strength),))


class _ServerOptimiser(Document):
    """What the adaptive methods share; see `Adaptive`."""

    rate: float = Field(default=0.1, gt=0, le=100)
    first_decay: float = Field(default=0.9, ge=0, lt=1)
    federates: Literal["everything", "body"] = "everything"

    def _made_of(self, moment: Moment, *, offset: float, second_decay: float) -> Method:
        rule = Adaptive(
            moment=moment, rate=self.rate, offset=offset, first_decay=self.first_decay, second_decay=second_decay
        )
        return Method(federated=_all_or_body(self.federates), server_rule=rule)


class FedAdam(_ServerOptimiser):
    """Adam at the coordinator. Reddi et al. 2021, algorithm 2; FENDA-FL, algorithm 1."""

    name: Literal["fedadam"]
    offset: float = Field(default=1e-9, gt=0, le=1)
    second_decay: float = Field(default=0.99, ge=0, lt=1)

    def method(self) -> Method:
        """The method made of its ingredients."""
        return self._made_of(Moment.ADAM, offset=self.offset, second_decay=self.second_decay)


class FedYogi(_ServerOptimiser):
    """Yogi at the coordinator. Reddi et al. 2021, algorithm 2."""

    name: Literal["fedyogi"]
    offset: float = Field(default=1e-3, gt=0, le=1)
    second_decay: float = Field(default=0.99, ge=0, lt=1)

    def method(self) -> Method:
        """The method made of its ingredients."""
        return self._made_of(Moment.YOGI, offset=self.offset, second_decay=self.second_decay)


class FedAdagrad(_ServerOptimiser):
    """Adagrad at the coordinator. Reddi et al. 2021, algorithm 2."""

    name: Literal["fedadagrad"]
    offset: float = Field(default=1e-3, gt=0, le=1)

    def method(self) -> Method:
        """The method made of its ingredients."""
        return self._made_of(Moment.ADAGRAD, offset=self.offset, second_decay=0.0)


class FedPer(Document):
    """A shared network with a private head. Arivazhagan et al. 2019, algorithm 1."""

    name: Literal["fedper"]

    def method(self) -> Method:
        """The method made of its ingredients."""
        return Method(federated=Parts((Part.INPUT, Part.BODY)), server_rule=Mean())


class LocalGlobal(Document):
    """LG-FedAvg: private lower layers under shared upper ones. Liang et al. 2020, algorithm 1."""

    name: Literal["lg-fedavg"]

    def method(self) -> Method:
        """The method made of its ingredients."""
        return Method(federated=Parts((Part.BODY, Part.HEAD)), server_rule=Mean())


class FedBN(Document):
    """FedAvg with private normalisation layers. Li et al. 2021 (FedBN), algorithm 1."""

    name: Literal["fedbn"]

    def method(self) -> Method:
        """The method made of its ingredients."""
        return Method(federated=AllButNormalisation(), server_rule=Mean())


class LocalOnly(Document):
    """Every site trains alone with the plan's budget; nothing but the fact of taking part travels."""

    name: Literal["local"]

    def method(self) -> Method:
        """The method made of its ingredients."""
        return Method(federated=Nothing(), server_rule=Mean())


def _all_or_body(federates: Literal["everything", "body"]) -> Federated:
    return Everything() if federates == "everything" else Parts((Part.BODY,))


MethodChoice: TypeAlias = Annotated[
    GlobalLayers
    | FederatedAveraging
    | FedProx
    | FedAdam
    | FedYogi
    | FedAdagrad
    | FedPer
    | LocalGlobal
    | FedBN
    | LocalOnly,
    Field(discriminator="name"),
]

# What a hospital's policy may name; from the definitions themselves, so that neither can lack one.
METHOD_NAMES: Final[tuple[str, ...]] = tuple(
    get_args(choice.model_fields["name"].annotation)[0] for choice in get_args(get_args(MethodChoice)[0])
)
