"""The catalogue of methods: one short definition each, with its source.

The fields of a definition are the method's hyperparameters as they stand in a plan, so a misspelt
one is refused where it is written.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from protos.architecture import Part
from protos.documents import Document
from protos.ingredients import Everything, Mean, Method, Nothing, Parts


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


class LocalOnly(Document):
    """Every site trains alone with the plan's budget; nothing but the fact of taking part travels."""

    name: Literal["local"]

    def method(self) -> Method:
        """The method made of its ingredients."""
        return Method(federated=Nothing(), server_rule=Mean())


MethodChoice: TypeAlias = Annotated[GlobalLayers | FederatedAveraging | LocalOnly, Field(discriminator="name")]
