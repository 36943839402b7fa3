"""Defines the methods that train one model for all sites: FedAvg and improvements of FedAvg.

The fields of a class are the method's hyperparameters with their names in a plan. † marks methods whose formula comes
from memory of the original paper, and not from the papers that this project reproduces.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from protos.plan import ingredients
from protos.plan.documents import Document
from protos.plan.ingredients import Method


class MethodWithoutSettings(Document):
    """A method without hyperparameters: the same parts in every plan."""

    parts: ClassVar[Method] = Method()

    def method(self) -> Method:
        """Return the method as a record of its shared parameters, local procedure and server rule."""
        return self.parts


class FederatedAveraging(MethodWithoutSettings):
    """All sites train one model. McMahan et al. 2017, algorithm 1.

    The plan's list of encoded columns aligns sites with different columns. A column that a site does not record is zero
    there, as in the baseline of the Global Layers paper.
    """

    name: Literal["fedavg"]


class FedProx(Document):
    """FedAvg with a term that keeps each site near the received parameters. Li et al. 2020, eq. 2."""

    name: Literal["fedprox"]
    strength: float = Field(default=0.01, gt=0, le=1e6)

    def method(self) -> Method:
        return Method(penalty=ingredients.Proximal(self.strength))


class _ServerOptimiser(Document):
    """The settings of FedAdagrad, FedAdam and FedYogi, the methods with an adaptive server rule. See `Adaptive`.

    A shared weight moves by up to about `rate` in a round, even if its mean update is far smaller. At 0.1 small
    networks often end with the same output for every patient. At 0.01 all three methods train. `offset` is tau of Reddi
    et al. 2021, who use 1e-3. With 1e-9 FedAdam also moves weights whose mean update is only noise.
    """

    rate: float = Field(default=0.01, gt=0, le=100)
    first_decay: float = Field(default=0.9, ge=0, lt=1)
    offset: float = Field(default=1e-3, gt=0, le=1)

    def _made_of(self, moment: ingredients.Moment, *, second_decay: float) -> Method:
        rule = ingredients.Adaptive(
            moment=moment, rate=self.rate, offset=self.offset, first_decay=self.first_decay, second_decay=second_decay
        )
        return Method(server_rule=rule)


class FedAdam(_ServerOptimiser):
    """The coordinator takes an Adam step. Reddi et al. 2021, algorithm 2.

    FENDA-FL, algorithm 1, has the offset 1e-9.
    """

    name: Literal["fedadam"]
    second_decay: float = Field(default=0.99, ge=0, lt=1)

    def method(self) -> Method:
        return self._made_of(ingredients.Moment.ADAM, second_decay=self.second_decay)


class FedYogi(_ServerOptimiser):
    """The coordinator takes a Yogi step. Reddi et al. 2021, algorithm 2."""

    name: Literal["fedyogi"]
    second_decay: float = Field(default=0.99, ge=0, lt=1)

    def method(self) -> Method:
        return self._made_of(ingredients.Moment.YOGI, second_decay=self.second_decay)


class FedAdagrad(_ServerOptimiser):
    """The coordinator takes an Adagrad step. Reddi et al. 2021, algorithm 2."""

    name: Literal["fedadagrad"]

    def method(self) -> Method:
        return self._made_of(ingredients.Moment.ADAGRAD, second_decay=0.0)


class Scaffold(Document):
    """Control variates correct the drift of unequal sites. Karimireddy et al. 2020, algorithm 1, option II."""

    name: Literal["scaffold"]
    rate: float = Field(default=1.0, gt=0, le=100)

    def method(self) -> Method:
        return Method(procedure=ingredients.ControlVariates(), server_rule=ingredients.Controlled(self.rate))


class Moon(Document):
    """FedAvg with model-contrastive learning. Li et al. 2021 (MOON), eq. 3 and 4."""

    name: Literal["moon"]
    strength: float = Field(default=1e-3, gt=0, le=1e6)
    temperature: float = Field(default=0.5, gt=0, le=100)

    def method(self) -> Method:
        return Method(penalty=ingredients.Contrastive(strength=self.strength, temperature=self.temperature))


class LocalOnly(MethodWithoutSettings):
    """Every site trains alone with the plan's budget. A site sends only the fact that the site takes part."""

    name: Literal["local"]
    parts = Method(federated=ingredients.Nothing())
