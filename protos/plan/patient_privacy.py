"""Defines the plan's key `privacy`: the promise to each patient, and the methods that can keep this promise.

The unit is one patient with all the patient's rows. Two tables are neighbours if they are equal except that one lacks
one patient. The promise applies against everybody outside the hospital: the coordinator, the other sites, and whoever
receives the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, Self, assert_never

from pydantic import Field, StrictInt, model_validator

from protos.plan.architecture import Part
from protos.plan.documents import Document
from protos.plan.ingredients import (
    AllButNormalisation,
    ColumnByColumn,
    Contrastive,
    ControlVariates,
    Everything,
    ExtractorContrast,
    FederatedOnly,
    InnerProblem,
    Method,
    Mixture,
    Nothing,
    Parts,
    PersonalCopy,
    Prefix,
    PrivateFirst,
    Procedure,
    SensitivePrefix,
    Together,
)
from protos.privacy.accounting import ratio_of

LARGEST_EPSILON: Final = 20.0
SMALLEST_EPSILON: Final = 0.01
LARGEST_DELTA: Final = 1e-3
SMALLEST_DELTA: Final = 1e-12
SMALLEST_CLIP: Final = 1e-6  # its inverse and its square are far from the limits of float64


class Privacy(Document):
    """Settings of differential privacy, which protects each patient over a whole run.

    Attributes:
        unit: one patient with all the patient's rows. Without a patient column in the contract, each row counts as a
            patient.
        epsilon: if a patient joins or leaves a table, no event becomes more probable than e^epsilon times
            its earlier probability, plus delta.
        delta: see epsilon; much smaller than one divided by the number of patients.
        clip: in a prior plan the largest norm of one standardised row, its intercept included; in a network plan that
            of one patient's gradient. In a statistics plan one patient counts at most as much as this many complete
            rows. A longer vector is shortened to this norm.
    """

    unit: Literal["patient"]
    epsilon: float = Field(allow_inf_nan=True)
    delta: float = Field(allow_inf_nan=True)
    clip: float = Field(ge=SMALLEST_CLIP, le=1000)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not SMALLEST_EPSILON <= self.epsilon <= LARGEST_EPSILON:
            raise ValueError(
                f"epsilon is {self.epsilon:g}, but must be between {SMALLEST_EPSILON:g} and {LARGEST_EPSILON:g}. "
                "With more, the result could show almost surely who was a patient. With less, it would be useless"
            )
        if not SMALLEST_DELTA <= self.delta <= LARGEST_DELTA:
            raise ValueError(
                f"delta is {self.delta:g}, but must be between {SMALLEST_DELTA:g} and {LARGEST_DELTA:g}. Choose a "
                "delta much smaller than 1 divided by the number of patients, because the promise adds delta to "
                "every probability"
            )
        return self

    @property
    def ratio(self) -> float:
        """Return the clipping norm divided by the noise's standard deviation, for a run with a single noisy sum."""
        return ratio_of(self.epsilon, self.delta)


class TrainingPrivacy(Privacy):
    """Settings of differential privacy for training a network.

    Attributes:
        patients: the number that divides each sum of gradients: about the number of training patients at all sites. It
            is declared, so that no site sends a count.
        noise: `shared` or `local`. With `shared` the sites' shares add up to the noise of a round, so a round is one
            sum. With `local` each site adds the whole noise in each of its steps, of which a round may have several.
    """

    patients: StrictInt = Field(ge=1, le=1 << 30)
    noise: Literal["shared", "local"] = "shared"


def why_not_private(method: Method, noise: Literal["shared", "local"]) -> Iterator[str]:
    """Yield each reason why a method cannot keep the promise of differential privacy to patients, as a short text."""
    if isinstance(method.federated, Nothing):
        yield "the sites of this method send no sums over patients to which noise could be added"
        return
    yield from _of_federated(method)
    yield from _of_procedure(method.procedure, noise)
    if isinstance(method.penalty, Contrastive | ExtractorContrast):
        # The gradient of a proximal term is 0 at the received values, from which the only step of a round starts.
        yield (
            "the contrastive penalty uses the site's own earlier model, which was trained on patients' data without "
            "noise"
        )


def has_own_steps(method: Method) -> bool:
    """Return whether a method trains private layers in the rounds. They change the next shared gradient."""
    # Private layers that keep their first values depend on no patient.
    return not isinstance(method.federated, Everything | Nothing) and not isinstance(method.procedure, FederatedOnly)


def _of_federated(method: Method) -> Iterator[str]:
    match method.federated:
        case Everything() | Nothing():
            return
        case AllButNormalisation():
            yield (
                "networks in training with privacy have no normalisation layers that could stay private. Use fedavg, "
                "which is the same method for these networks"
            )
        case SensitivePrefix():
            yield (
                "the method would measure the layers on patients' data, and the privacy budget does not cover this "
                "measurement. Set the key layers of player-fl"
            )
        case Parts(parts=parts) if Part.COMMON in parts:
            yield "the program cannot clip the gradients of a network with a shared and a private extractor"
        case Parts() | Prefix():
            if method.update_rate != 1.0:
                yield (
                    "with update_rate below 1, a site would keep a part of its values from earlier rounds. Set "
                    "update_rate to 1"
                )
        case _:
            assert_never(method.federated)


def _of_procedure(procedure: Procedure, noise: Literal["shared", "local"]) -> Iterator[str]:
    match procedure:
        case Together() | FederatedOnly() | PersonalCopy() | Mixture():
            return
        case PrivateFirst():
            yield (
                "the method trains private layers first, in steps that the privacy budget does not cover. Use "
                "fedper, which trains the same private layers and the shared layers together in one step"
            )
        case InnerProblem() if noise == "local":
            return  # its steps add the whole noise, as other local steps do
        case InnerProblem():
            yield (
                "pfedme makes several training steps on patients' data in each round. Set noise under privacy to local"
            )
        case ControlVariates():
            yield "a control variate stores gradients of a site's patients without noise, and influences later updates"
        case ColumnByColumn():
            yield "the program cannot clip the gradients of a network with a common and a unique column"
        case _:
            assert_never(procedure)
