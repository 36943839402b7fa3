"""The plan's key `privacy`: the promise to each patient, and which methods can keep it.

The unit is one patient with all rows. Neighbours are two tables of which one lacks one patient. The promise holds
against everybody outside the hospital: the coordinator, the other sites, and whoever receives the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Final, Literal, Self, assert_never

from pydantic import Field, StrictInt, model_validator

from protos.plan.averaging_methods import FederatedAveraging, LocalOnly
from protos.plan.documents import Document
from protos.plan.ingredients import (
    AllButNormalisation,
    Everything,
    Federated,
    Layers,
    Nothing,
    Parts,
    Prefix,
    SensitivePrefix,
)
from protos.plan.methods import Composition, MethodChoice
from protos.plan.prior_method import FederatedPrior, YesOrNo
from protos.privacy.accounting import ratio_of

LARGEST_EPSILON: Final = 20.0
SMALLEST_EPSILON: Final = 0.01
LARGEST_DELTA: Final = 1e-3
SMALLEST_DELTA: Final = 1e-12


class Privacy(Document):
    """Differential privacy of a whole run, for one patient.

    Attributes:
        unit: one patient with all rows. Where a contract has no patient column, each row counts as a patient.
        epsilon: no event gets more than e^epsilon times as probable when a patient joins or leaves a table, except
            with probability delta.
        delta: see epsilon; far below one divided by the number of patients.
        clip: with federated-prior the largest norm of one standardised row, its intercept included; with a network
            that of the gradient of one patient. A longer one is shortened to it.
        patients: with a network, the number by which each sum of gradients is divided: about as many as train at all
            sites. It is declared, so that no count leaves.
    """

    unit: Literal["patient"]
    epsilon: float = Field(allow_inf_nan=True)
    delta: float = Field(allow_inf_nan=True)
    clip: float = Field(gt=0, le=1000)
    patients: StrictInt | None = Field(default=None, ge=1, le=1 << 30)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not SMALLEST_EPSILON <= self.epsilon <= LARGEST_EPSILON:
            raise ValueError(_of_epsilon(self.epsilon))
        if not SMALLEST_DELTA <= self.delta <= LARGEST_DELTA:
            raise ValueError(
                f"delta is {self.delta:g}, and it lies between {SMALLEST_DELTA:g} and {LARGEST_DELTA:g}: it is the "
                "probability with which the promise may fail, so choose it far below 1 / patients"
            )
        return self

    @property
    def ratio(self) -> float:
        """The clip divided by the standard deviation of the noise in the sum, for all numbers of the run."""
        return ratio_of(self.epsilon, self.delta)


def price_in_words(privacy: Privacy, sums: int = 1) -> str:
    """What a run with so many sums of the same patients costs each of them, in one line."""
    deviations = sqrt(sums) / privacy.ratio
    rounds = "" if sums == 1 else f" over all {sums} rounds"
    return (
        f"epsilon {privacy.epsilon:g}, delta {privacy.delta:g} for each patient{rounds}. The noise in each number is "
        f"{deviations:.3g} times as large as the change that one patient can cause"
    )


def _of_epsilon(epsilon: float) -> str:
    allowed = f"epsilon is {epsilon:g}, and it lies between {SMALLEST_EPSILON:g} and {LARGEST_EPSILON:g}"
    if epsilon > LARGEST_EPSILON:
        return f"{allowed}: with more, the result may show almost surely who was a patient, so nothing is promised"
    if epsilon < SMALLEST_EPSILON:
        return f"{allowed}: with less, the noise hides the patients and also everything else"
    return f"{allowed}: it is not a number, so nothing is promised"


def why_not_private(method: MethodChoice) -> Iterator[str]:
    """Yield each reason why a method cannot keep the promise, one clause each; nothing if it can."""
    match method:
        case FederatedPrior(outcome=YesOrNo()) | FederatedAveraging():
            return
        case FederatedPrior():
            yield "federated-prior keeps privacy for a binary outcome only: other gradients are not clipped yet"
        case LocalOnly():
            yield "local sends no sums of patients, so there is nothing to which noise could be added"
        case Composition(of=parts):
            yield "several methods together have no private form"
            for part in parts:
                yield from why_not_private(part)
        case _:
            yield (
                f"{method.name} sends the change of a network after steps of its own, which is no sum of one clipped "
                "term for each patient"
            )
            yield from _of_private_parts(method.name, method.method().federated)


def _of_private_parts(name: str, federated: Federated) -> Iterator[str]:
    match federated:
        case Everything() | Nothing():
            return
        case Parts() | Layers() | AllButNormalisation() | SensitivePrefix() | Prefix():
            yield f"{name} keeps private layers, which learn from patients and shape the next shared change"
        case _:
            assert_never(federated)
