"""Defines the methods of network plans: first those that train one model for all sites, then personal ones.

The fields of a class are the method's hyperparameters with their names in a plan. † marks methods whose formula comes
from memory of the original paper, and not from the papers that this project reproduces.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, TypeAlias, get_args

from pydantic import Field, StrictInt

from protos.plan import ingredients
from protos.plan.architecture import Part
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


_ALL_BUT_HEAD: Final = ingredients.Parts((Part.INPUT, Part.BODY))
_COMMON: Final = ingredients.Parts((Part.COMMON,))


class GlobalLayers(Document):
    """Sites share the inner layers. The input and output layers of each site are private.

    Source: Obeidi, "Global Layers: Non-IID Tabular Federated Learning", BatchAlignedFedAvg. The plan's schedule sets
    after how many batches the sites aggregate. The layers of the body are shared, because none of their shapes depends
    on a site's columns or outputs.
    """

    name: Literal["global-layers"]
    update_rate: float = Field(default=1.0, gt=0, le=1)

    def method(self) -> Method:
        return Method(federated=ingredients.Parts((Part.BODY,)), update_rate=self.update_rate)


class FedPer(MethodWithoutSettings):
    """Sites share the network except its head. Arivazhagan et al. 2019, algorithm 1."""

    name: Literal["fedper"]
    parts = Method(federated=_ALL_BUT_HEAD)


class FedRep(Document):
    """Each round trains the private head first, then the shared layers. Collins et al. 2021, algorithm 1. †"""

    name: Literal["fedrep"]
    head_epochs: StrictInt = Field(default=10, ge=1, le=1000)

    def method(self) -> Method:
        return Method(federated=_ALL_BUT_HEAD, procedure=ingredients.PrivateFirst(self.head_epochs))


class FedBABU(Document):
    """Until the fine-tuning at the end, the head keeps its initial values, which are equal at all sites.

    Oh et al. 2022, algorithm 1. †
    """

    name: Literal["fedbabu"]
    fine_tuning_epochs: StrictInt = Field(default=1, ge=0, le=1000)

    def method(self) -> Method:
        epochs, head_waits = self.fine_tuning_epochs, ingredients.FederatedOnly()
        return Method(
            federated=_ALL_BUT_HEAD, procedure=head_waits, fine_tuning_epochs=epochs, starts_equal=(Part.HEAD,)
        )


class LocalAdaptation(Document):
    """After FedAvg each site fine-tunes its own version of the model. Yu et al. 2020."""

    name: Literal["local-adaptation"]
    fine_tuning_epochs: StrictInt = Field(default=1, ge=1, le=1000)

    def method(self) -> Method:
        return Method(fine_tuning_epochs=self.fine_tuning_epochs)


class Ditto(Document):
    """Each site has a personal model that stays near the shared model. Li et al. 2021 (Ditto), algorithm 1."""

    name: Literal["ditto"]
    strength: float = Field(default=0.01, ge=0, le=1e6)

    def method(self) -> Method:
        return Method(procedure=ingredients.PersonalCopy(self.strength))


class PFedMe(Document):
    """Each site has a personal model from a Moreau envelope. Dinh et al. 2020, algorithm 1. †

    `rate` is the step of the shared model at the site, and the coordinator's beta is 1. The inner problem takes steps
    of the plan's optimiser.
    """

    name: Literal["pfedme"]
    strength: float = Field(default=15.0, gt=0, le=1e6)
    inner_steps: StrictInt = Field(default=5, ge=1, le=1000)
    rate: float = Field(default=0.01, gt=0, le=10)

    def method(self) -> Method:
        return Method(procedure=ingredients.InnerProblem(self.strength, self.inner_steps, self.rate))


class APFL(Document):
    """Each site mixes a shared and a local model, and learns the mixing ratio. Deng et al. 2020, algorithm 1."""

    name: Literal["apfl"]
    share: float = Field(default=0.5, ge=0, le=1)
    share_rate: float = Field(default=0.1, ge=0, le=10)

    def method(self) -> Method:
        return Method(procedure=ingredients.Mixture(self.share, self.share_rate))


class FendaFL(MethodWithoutSettings):
    """A shared and a private extractor feed a private head. Tavakoli et al. 2024 (FENDA-FL), section 3.2."""

    name: Literal["fenda-fl"]
    parts = Method(federated=_COMMON)


class PerFCL(Document):
    """FENDA-FL's network with two contrastive terms. Zhang et al. 2023 (PerFCL), as FENDA-FL states it."""

    name: Literal["perfcl"]
    common_strength: float = Field(default=0.1, ge=0, le=1e6)
    unique_strength: float = Field(default=1.0, ge=0, le=1e6)
    temperature: float = Field(default=0.5, gt=0, le=100)

    def method(self) -> Method:
        contrast = ingredients.ExtractorContrast(
            common_strength=self.common_strength, unique_strength=self.unique_strength, temperature=self.temperature
        )
        return Method(federated=_COMMON, penalty=contrast)


class CHFL(MethodWithoutSettings):
    """A network has a common and a unique column of layers. Mori et al. 2022; mu is `lateral` of the network."""

    name: Literal["chfl"]
    parts = Method(federated=_COMMON, procedure=ingredients.ColumnByColumn())


class PLayerFL(Document):
    """The sites measure which layers to share. Elhussein and Gürsoy 2025.

    With `layers` nothing is measured, and this many layers from the input are shared: PLayer-FL-1 and PLayer-FL+1.
    """

    name: Literal["player-fl"]
    threshold: float = Field(default=2.0, gt=1, le=1e6)
    layers: StrictInt | None = Field(default=None, ge=1, le=1000)

    def method(self) -> Method:
        measured = ingredients.SensitivePrefix(self.threshold)
        return Method(federated=measured if self.layers is None else ingredients.Prefix(self.layers))


class PLayerFLRandom(MethodWithoutSettings):
    """The plan's seed draws how many of the first layers are shared. PLayer-FL's control method."""

    name: Literal["player-fl-random"]
    parts = Method(federated=ingredients.Prefix())


class FedBN(MethodWithoutSettings):
    """FedAvg with private normalisation layers. Li et al. 2021 (FedBN), algorithm 1. †"""

    name: Literal["fedbn"]
    parts = Method(federated=ingredients.AllButNormalisation())


class LocalGlobal(MethodWithoutSettings):
    """Sites share the upper layers. The lower layers stay private: LG-FedAvg. Liang et al. 2020, algorithm 1. †"""

    name: Literal["lg-fedavg"]
    parts = Method(federated=ingredients.Parts((Part.BODY, Part.HEAD)))


MethodChoice: TypeAlias = Annotated[
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

# The methods that train a network. They are read from the definitions, so none can be missing.
NETWORK_METHODS: Final[tuple[str, ...]] = tuple(
    get_args(choice.model_fields["name"].annotation)[0] for choice in get_args(get_args(MethodChoice)[0])
)

FEDERATED_PRIOR: Final = "federated-prior"  # the name of a prior plan in policies, reports and results
# The names that a hospital's policy can use.
METHOD_NAMES: Final[tuple[str, ...]] = (*NETWORK_METHODS, FEDERATED_PRIOR)
