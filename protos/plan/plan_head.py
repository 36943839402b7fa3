"""Defines the keys that plans of every kind have: the study, its sites, masking, privacy and deadlines.

A plan is written in YAML and sent as canonical JSON. The SHA-256 of these bytes identifies it. Coordinator and sites
refuse a run unless they have the same digest. Keys that decide about safety (sites, weighting) have no default, except
that masking is required.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import Field, StrictBool, StringConstraints, model_validator

from protos.numbers.fixed_point import is_power_of_two
from protos.numbers.short_integers import largest_integer
from protos.plan.canonical import digest
from protos.plan.concepts import Concept, Question
from protos.plan.documents import NAME, Document, refuse_for
from protos.plan.ingredients import Method, Nothing
from protos.plan.patient_privacy import Privacy
from protos.plan.private_training import PrivateTraining
from protos.plan.schedules import Timing
from protos.plan.weighting import EqualWeights, Weighting
from protos.wire.messages import Stage

LARGEST_PLAN_BYTES: Final = 1 << 20
MOST_SITES: Final = 100
FITTING: Final = (Stage.TRAINING, Stage.NEWTON)  # the stages that can end early
FEWEST_SITES: Final = 3  # with two, each site computes the other's contribution from the sum

Name: TypeAlias = Annotated[str, StringConstraints(pattern=NAME)]
Fingerprint: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z2-7]{4}(-[a-z2-7]{4}){7}$")]
Stages: TypeAlias = tuple[tuple[Stage, int], ...]
Tier: TypeAlias = Literal["receiving", "statistics", "evaluation", "training"]


class ListedSite(Document):
    """A site in the plan. Kinds have their own tiers."""

    name: Name
    identity: Fingerprint
    tier: Tier = "training"


_FEWEST_LEVELS: Final = 256  # of a short integer on each side of 0


class Masking(Document):
    """Whether contributions are masked, and the encoding of updates as integers.

    Without masks the coordinator can read each site's contribution. `clipping_range` is the largest absolute value of
    an encoded update, an integer of so many `bits`. If more than `largest_clipped_share` of the values are clipped (of
    16 bits in any layer), the site sends a void.
    """

    required: StrictBool = True
    bits: Literal[16, 32] = 32
    clipping_range: float = Field(default=8.0, ge=2.0**-40, le=1024)
    largest_clipped_share: float = Field(default=0.001, ge=0, le=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not is_power_of_two(self.clipping_range):
            raise ValueError("clipping_range must be a power of two, such as 4, 8 or 16, so that decoding is exact")
        return self


class PlanHead(Document, ABC):
    """The keys of plans of every kind, and the facts that follow from them."""

    study: Name
    version: int = Field(ge=1, le=1 << 30)
    question: Question | None = None
    sites: Annotated[tuple[ListedSite, ...], Field(min_length=1, max_length=MOST_SITES)]
    assumed_colluders: int = Field(default=1, ge=0)
    masking: Masking = Masking()
    timing: Timing = Timing()
    privacy: Privacy | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse_for((*self._of_sites(), *self._of_masks(), *self._reasons()))
        return self

    def _reasons(self) -> Iterator[str]:
        """Yield each reason against a plan of this kind, as one clause."""
        yield from ()

    def _of_sites(self) -> Iterator[str]:
        if len({site.name for site in self.sites}) != len(self.sites):
            yield "the plan lists two sites with the same name"
        if len({site.identity for site in self.sites}) != len(self.sites):
            yield "the plan lists two sites with the same identity key"
        fewest = max(FEWEST_SITES, self.assumed_colluders + 2) if self.masking.required else FEWEST_SITES
        if self.training_count < fewest:
            yield (
                f"with {self.assumed_colluders} assumed colluders, at least {fewest} sites must contribute to each "
                f"sum, but the plan has {self.training_count}"
            )

    @property
    def bits(self) -> int:
        return self.masking.bits

    @property
    def sends_updates(self) -> bool:
        """Return whether the sites send updates of a network, and not only other numbers."""
        return False

    def _of_masks(self) -> Iterator[str]:
        if self.bits != 32 and not self.sends_updates:
            yield "only updates of a network without privacy can be short integers. Set bits under masking to 32"
        if self.bits != 32 and largest_integer(self.bits, len(self.sites)) < _FEWEST_LEVELS:
            yield f"sums of {self.bits} bits are too coarse for {len(self.sites)} sites. Set bits under masking to 32"
        if self.privacy is None:
            return
        if not self.masking.required:
            yield "privacy: the noise of one site is too small without masks. Set required under masking to true"
        most = len(self.site_names) - 1
        if not 1 <= self.assumed_colluders <= most:
            yield (
                f"privacy: assumed_colluders is {self.assumed_colluders}, but must be between 1 and {most}. At least "
                "1 is needed, because a site can subtract its own noise from a sum"
            )

    @property
    @abstractmethod
    def method_name(self) -> str:
        """Return the name of the plan's method. A policy must allow it."""

    @property
    def ingredients(self) -> Method:
        """Return the plan's method as a record of its parts. A plan without a network shares no parameter."""
        return Method(federated=Nothing())

    @property
    @abstractmethod
    def stages(self) -> Stages:
        """Return the stages of the run in their order, each with its largest number of rounds."""

    @cached_property
    def rounds(self) -> int:
        """Return the largest number of rounds of the run, including rounds that only measure."""
        return sum(count for _, count in self.stages)

    @cached_property
    def training_rounds(self) -> int:
        """Return the largest number of rounds in which a model is fitted."""
        return sum(count for stage, count in self.stages if stage in FITTING)

    @cached_property
    def has_probe(self) -> bool:
        """Return whether round 0 measures which layers to share, before training starts."""
        return self.stages[0][0] is Stage.PROBE

    @cached_property
    def has_validation_round(self) -> bool:
        """Return whether a round after the last training round measures the final parameters."""
        return self.stages[-1][0] is Stage.VALIDATION

    @property
    def may_end_early(self) -> bool:
        """Return whether the run can end before its last round."""
        return any(stage is Stage.NEWTON for stage, _ in self.stages)

    @property
    def seed(self) -> int:
        """Return the seed of the first values; 0 in a plan without a network, which draws none."""
        return 0

    @property
    def site_weights(self) -> Weighting:
        """Return the weight of each site in the mean of a round."""
        return EqualWeights(name="equal")

    @property
    def shared_columns(self) -> tuple[str, ...]:
        """Return the columns that set the sizes of shared layers; empty if no shared layer reads columns."""
        return ()

    @property
    def private_training(self) -> PrivateTraining | None:
        """Return the record of training with differential privacy, or None if the plan has no such training."""
        return None

    @property
    def own_numbers(self) -> int:
        """Return the number of values in private layers trained with noise. These values never leave the site."""
        return 0

    @property
    @abstractmethod
    def noise_variance(self) -> int:
        """Return the variance of the noise that a site adds to each integer of a sum or local step; 0 without noise."""

    @property
    def private_sums(self) -> int:
        """Return the number of noisy sums over the same patients in the whole run; 0 without `privacy`."""
        return int(self.privacy is not None)

    @property
    def private_releases(self) -> int:
        """Return how many contributions of a site one record of privacy cost covers. 0 without `privacy`."""
        return int(self.privacy is not None)

    @property
    def honest(self) -> int:
        """Return how many sites' shares of the noise are in every sum and are counted."""
        return len(self.site_names) - self.assumed_colluders

    @cached_property
    def evaluating_sites(self) -> frozenset[str]:
        """Return the sites that send measurements and an update of zeros."""
        return frozenset(site.name for site in self.sites if site.tier == "evaluation")

    @property
    def training_count(self) -> int:
        """Return how many sites contribute to every sum. Sites that only evaluate hide nobody's update."""
        return len(self.site_names) - len(self.evaluating_sites)

    @cached_property
    def receiving_sites(self) -> frozenset[str]:
        """Return the sites that send no number and receive the result."""
        return frozenset(site.name for site in self.sites if site.tier == "receiving")

    def tier_of(self, site: str) -> Tier:
        """Return what the plan requires of a site: only to receive, to send statistics, to evaluate, or to train."""
        return next((each.tier for each in self.sites if each.name == site), "training")

    @cached_property
    def site_names(self) -> tuple[str, ...]:
        """Return the names of all sites that can contribute, sorted. Sites that only receive are not included."""
        return tuple(sorted(site.name for site in self.sites if site.tier != "receiving"))

    @cached_property
    def listed_names(self) -> tuple[str, ...]:
        """Return the names of all sites, sorted. Sites that only receive are included."""
        return tuple(sorted(site.name for site in self.sites))

    @cached_property
    def run_name(self) -> str:
        """Return the name of this plan's only run. Sites refuse any other name.

        A second run from the same start with other sites would reveal one site's update. To repeat a study, raise its
        version.
        """
        return f"{self.study}-v{self.version}-{self.digest.hex()[:12]}"

    @cached_property
    def canonical(self) -> bytes:
        """Return the plan as JSON with sorted keys. Equal plans have equal bytes."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> bytes:
        """Return the SHA-256 of the canonical bytes, 32 bytes. A hospital approves this digest."""
        return digest("plan", self.canonical)


def why_not_listed(concepts: tuple[Concept, ...], sites: tuple[str, ...]) -> Iterator[str]:
    """Yield each mistake in a plan's concepts: a name that is listed twice, or a recorder that does not contribute."""
    names = [concept.name for concept in concepts]
    if len(set(names)) != len(names):
        yield "the plan lists two concepts with the same name"
    for concept in concepts:
        if strangers := set(concept.recorded_by or ()) - set(sites):
            unknown = ", ".join(sorted(strangers))
            yield f"recorded_by of {concept.name} lists sites that do not contribute to the plan: {unknown}"
