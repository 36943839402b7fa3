"""Defines the plan: everything on which the sites agree before training, as one frozen record.

A plan is written in YAML and sent as canonical JSON. The SHA-256 of these bytes identifies it. Coordinator and sites
refuse to train unless they have the same digest. Keys that decide about safety (sites, weighting) have no
default, except that masking is required.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import Field, StringConstraints, model_validator

from protos.numbers.fixed_point import is_power_of_two
from protos.plan.architecture import TENSOR_NAME, Architecture, ColumnsNetwork, DenseNetwork, note_columns
from protos.plan.augmentation import Augmentation, why_not_augmented
from protos.plan.canonical import digest
from protos.plan.compatibility import Conditions, agreed_sizes, missing_parts, why_impossible
from protos.plan.concepts import Answers, Concept, Question, columns_of
from protos.plan.documents import Document, refuse_for
from protos.plan.federated_statistics import Statistics
from protos.plan.ingredients import (
    Adaptive,
    Blend,
    Mean,
    Method,
    SensitivePrefix,
)
from protos.plan.learning_rates import ConstantRate, ExponentialRate, RateSchedule, StepRate
from protos.plan.losses import Loss, TaskDefault
from protos.plan.methods import MethodChoice, described
from protos.plan.optimisers import Optimiser, StochasticGradientDescent, is_plain_descent
from protos.plan.partly_recorded import Column, PartlyObserved, PartlyRecorded, why_refused
from protos.plan.patient_privacy import Privacy, why_not_private
from protos.plan.prior_method import FederatedPrior
from protos.plan.prior_sums import Prior, prior_of
from protos.plan.private_statistics import PrivateStatistics, why_not_counted_privately
from protos.plan.private_training import PrivateTraining, TrainingKeys, private_training_of, why_not_trained_privately
from protos.plan.schedules import Deadlines, EarlyStopping, EpochSchedule, Schedule, Snapshots
from protos.plan.weighting import EqualWeights, RowWeights, Weighting

LARGEST_PLAN_BYTES: Final = 1 << 20
MOST_SITES: Final = 100
# The keys of a network and its training. A plan that trains a network needs them. Other plans do not use them.
_OF_NETWORKS: Final = ("architecture", "schedule", "optimiser", "weighting", "seed")

Name: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
Fingerprint: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z2-7]{4}(-[a-z2-7]{4}){7}$")]


class ListedSite(Document):
    """A site in the plan: its name, the fingerprint of its identity key, and its role in the study.

    `answers` states whether the site's outcome is the one in the plan's question. A site of the tier `evaluation` sends
    measurements and an update of zeros. A site of the tier `receiving` sends no number and receives the result.
    """

    name: Name
    identity: Fingerprint
    tier: Literal["receiving", "evaluation", "training"] = "training"
    answers: Answers = "same"


_Layer = Annotated[str, Field(pattern=TENSOR_NAME)]  # no control character can reach a screen or a log


class StartingFile(Document):
    """A safetensors file with initial values, for example from an earlier study. Coordinator and sites have this file.

    `sha256` is the file's digest. `layers` are the layers whose tensors the file has; None means all shared and frozen
    ones.
    """

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    layers: Annotated[tuple[_Layer, ...], Field(min_length=1, max_length=65_536)] | None = None

    @property
    def words(self) -> str:
        """Describe in one sentence which layers start from the starting file."""
        which = "All shared and frozen layers" if self.layers is None else f"The layers {', '.join(self.layers)}"
        return f"{which} start from the file with the SHA-256 {self.sha256}."


class Encoding(Document):
    """The encoding of updates as integers: the clipping range C, and the limit for the percentage of clipped values."""

    clipping_range: float = Field(default=8.0, gt=0, le=1024)
    largest_clipped_share: float = Field(default=0.001, ge=0, le=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not is_power_of_two(self.clipping_range):
            raise ValueError("clipping_range must be a power of two, such as 4, 8 or 16, so that decoding is exact")
        return self


class Plan(Document):
    """The plan of a study: everything on which all sites agree before training."""

    study: Name
    version: int = Field(ge=1, le=1 << 30)
    method: MethodChoice
    architecture: Architecture = DenseNetwork(name="dense", hidden=())
    columns: tuple[Column, ...] = ()
    question: Question | None = None
    concepts: tuple[Concept, ...] = Field(default=(), max_length=500)
    outputs: int | None = Field(default=None, ge=1, le=10_000)
    partly_recorded: tuple[PartlyRecorded, ...] = ()
    partly_observed: tuple[PartlyObserved, ...] = ()
    unused_columns: tuple[Column, ...] = ()
    schedule: Schedule = EpochSchedule(aggregate="every-round", epochs=1, batches_per_epoch=1)
    optimiser: Optimiser = StochasticGradientDescent(name="sgd", learning_rate=1.0)
    rate_schedule: RateSchedule = ConstantRate(name="constant")
    loss: Loss = TaskDefault(name="task-default")
    augmentation: Annotated[tuple[Augmentation, ...], Field(max_length=8)] = ()
    weighting: Weighting = EqualWeights(name="equal")
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    start: Literal["equal", "own"] = "equal"
    starting_file: StartingFile | None = None
    sites: tuple[ListedSite, ...] = Field(min_length=1, max_length=MOST_SITES)
    assumed_colluders: int = Field(default=1, ge=0)
    secure_aggregation: Literal["required", "off"] = "required"
    encoding: Encoding = Encoding()
    deadlines: Deadlines = Deadlines()
    snapshots: Snapshots = Snapshots()
    checkpoint: Literal["latest", "local", "global"] = "local"
    early_stopping: EarlyStopping | None = None
    statistics: Statistics | None = None
    privacy: Privacy | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        of_method = (self._of_sizes, self._of_rates, self._of_start, self._of_method)
        checks = (self._of_sites, self._of_tiers, *of_method, self._of_concepts, self._of_prior, self._of_privacy)
        refuse_for(reason for check in checks for reason in check())
        return self

    def _of_method(self) -> Iterator[str]:
        reasons = why_impossible(self.ingredients, self.conditions)
        yield from (f"the method {described(self.method)} is impossible in this plan: {reason}" for reason in reasons)

    def _of_concepts(self) -> Iterator[str]:
        if self.question is None and any(site.answers != "same" for site in self.sites):
            yield "a site has the setting answers, but the plan has no question. Add question or remove answers"
        names = [concept.name for concept in self.concepts]
        if len(set(names)) != len(names):
            yield "the plan lists two concepts with the same name"
        for concept in self.concepts:
            strangers = set(concept.recorded_by or ()) - set(self.site_names)
            if strangers:
                unknown = ", ".join(sorted(strangers))
                yield f"recorded_by of {concept.name} lists sites that do not contribute to the plan: {unknown}"

    def _of_prior(self) -> Iterator[str]:
        """Yield the errors in the settings of a plan with the method federated-prior."""
        if (prior := self.prior) is None:
            needed = _OF_NETWORKS if self.statistics is None else ()
            missing = [key for key in needed if key not in self.model_fields_set]
            yield from (f"{key}: this key is missing" for key in missing)
            return
        yield from prior.method.why_impossible(len(self.site_names), tuple(concept.name for concept in self.concepts))
        for names, sites in prior.recorders(frozenset(self.site_names)).items():
            if len(sites) < prior.method.fewest_sites:
                fewest = prior.method.fewest_sites
                why = " (three sites could each compute the sum of the other two)" if len(sites) == 3 else ""
                yield f"only {len(sites)} sites record {' and '.join(names)}, but fewest_sites is {fewest}{why}"
        unused = (self.statistics, self.early_stopping)
        others = (self.weighting.name, self.columns)
        if any(unused) or others != ("equal", ()) or self.checkpoint == "global":
            yield (
                "federated-prior trains no network. Remove columns, statistics, early_stopping, "
                "and checkpoint from the plan, and set weighting to {name: equal}"
            )

    def _of_privacy(self) -> Iterator[str]:
        if self.privacy is None:
            return
        reasons = [*why_not_private(self.method, self.privacy.noise)]
        if self.statistics is not None:
            reasons = [*why_not_counted_privately(self.statistics)]
        elif not isinstance(self.method, FederatedPrior):
            reasons += [] if reasons else why_not_trained_privately(self._training_keys(self.privacy))
            reasons += [] if reasons or self.private_training is None else self.private_training.why_not_narrow()
        if self.statistics is not None or isinstance(self.method, FederatedPrior):
            found = self.privacy.keys_of_networks
            reasons += (f"{key} is only for neural networks. Remove it from privacy" for key in found)
        if self.starting_file is not None:
            reasons.append("the noise is chosen for networks that start from the seed. Remove starting_file")
        if self.secure_aggregation != "required":
            reasons.append("the noise of one site is too small without masks. Set secure_aggregation to required")
        most = len(self.site_names) - 1
        if not 1 <= self.assumed_colluders <= most:
            reasons.append(
                f"assumed_colluders is {self.assumed_colluders}, but must be between 1 and {most}. At least 1 is "
                "needed, because a site can subtract its own noise from a sum"
            )
        yield from (f"privacy is impossible in this plan: {reason}" for reason in reasons)

    def _training_keys(self, promise: Privacy) -> TrainingKeys:
        unpaid = {
            "weighting": self.weighting.name != "equal",
            "checkpoint": self.checkpoint == "global",
            "early_stopping": self.early_stopping is not None,
            "loss": self.loss != TaskDefault(name="task-default"),
            "start": self.start != "equal",
            "sites": bool(self.evaluating_sites),
        }
        return TrainingKeys(
            promise=promise,
            honest=len(self.site_names) - self.assumed_colluders,
            network=self.architecture,
            columns=len(self.shared_columns) if self.reads_concepts else None,
            outputs=self.outputs,
            schedule=self.schedule,
            has_plain_steps=is_plain_descent(self.optimiser) and self.rate_schedule == ConstantRate(name="constant"),
            method=self.ingredients,
            pull=self.optimiser.learning_rate * self.ingredients.proximal_strength,
            unpaid=tuple(key for key, is_there in unpaid.items() if is_there),
        )

    def _of_start(self) -> Iterator[str]:
        yield from why_not_augmented(self.augmentation, self.architecture)
        if self.start == "own" and self.ingredients != Method(federated=self.ingredients.federated):
            yield "with start: own, the method may differ from fedavg only in the choice of shared parameters"
        if self.start == "own" and self.starting_file is not None:
            yield "with start: own, each site starts from its own first values. Remove starting_file from the plan"
        if self.starting_file is not None and (self.prior is not None or self.statistics is not None):
            yield "this plan trains no network. Remove starting_file from the plan"
        if self.start == "own" and self.has_probe:
            yield "with start: own, the sites start differently, so the method cannot measure the layers"

    def _of_rates(self) -> Iterator[str]:
        rates = self.rate_schedule
        if isinstance(self.schedule, EpochSchedule):
            if rates.warm_up_epochs >= self.schedule.epochs:
                yield "the warm-up of the learning rate must be shorter than the run"
        elif rates.warm_up_epochs or isinstance(rates, StepRate | ExponentialRate):
            yield "with aggregate: every-steps, epochs differ between sites, so rate_schedule cannot use epochs"

    def _of_weighting(self) -> Iterator[str]:
        if not isinstance(self.weighting, RowWeights) or not self.weighting.exact:
            return
        if self.secure_aggregation != "required":
            yield "exact row counts need masks, or a site's count would be visible"

    def _of_sizes(self) -> Iterator[str]:
        """Yield the mistakes in columns and outputs. A federated part has one size for all sites."""
        if len(set(self.columns)) != len(self.columns):
            yield "the plan lists a column twice under columns"
        if set(self.columns) & set(self.unused_columns):
            yield "the plan lists a column both under columns and under unused_columns"
        if self.reads_concepts and (self.partly_recorded or self.unused_columns):
            yield (
                "the network of this plan reads concepts, so partly_recorded and unused_columns are impossible. List "
                "the sites under recorded_by of each concept"
            )
        yield from why_refused(
            (*self.recorded_columns, *self.partly_observed),
            columns=self.shared_columns,
            outputs=self.outputs,
            training_sites=frozenset(self.site_names) - self.evaluating_sites,
            fewest=self.assumed_colluders + 2 if self.secure_aggregation == "required" else 1,
        )
        if missing_parts(self.ingredients, self.architecture):
            return  # the network does not fit the method, and that error is reported
        agreed = agreed_sizes(self.ingredients, self.architecture)
        may_lack = {"columns"} if note_columns(self.architecture) else set()  # a note has its own columns
        for key, is_given in (("columns", bool(self.shared_columns)), ("outputs", self.outputs is not None)):
            if key in agreed - may_lack and not is_given:
                instead = ", or list concepts" if key == "columns" else ""
                sizes = f"shares layers whose size depends on {key}"
                yield f"the method {described(self.method)} {sizes}. List the {key} in the plan{instead}"
            if is_given and key not in agreed and not (key == "columns" and self.reads_concepts):
                yield f"the {key} of each site stay private with {described(self.method)}. Remove {key} from the plan"

    def _of_sites(self) -> Iterator[str]:
        if len({site.name for site in self.sites}) != len(self.sites):
            yield "the plan lists two sites with the same name"
        if len({site.identity for site in self.sites}) != len(self.sites):
            yield "the plan lists two sites with the same identity key"
        fewest = max(3, self.assumed_colluders + 2)
        if self.secure_aggregation == "required" and self.training_count < fewest:
            yield (
                f"with masking and {self.assumed_colluders} assumed colluders, at least {fewest} sites must train, but "
                f"the plan has {self.training_count}"
            )
        if not self.training_count:
            yield "no site of the plan contributes an update"

    def _of_tiers(self) -> Iterator[str]:
        yield from self._of_weighting()
        if self.statistics is not None:
            bare = (self.checkpoint, self.early_stopping, self.weighting.name)
            if self.method.name != "local" or bare not in (
                ("local", None, "equal"), ("latest", None, "equal"),
            ):  # fmt: skip
                yield "statistics need the method local, equal weights, and no setting that measures a model"
        if self.receiving_sites and self.prior is None:
            yield "only a plan with the method federated-prior can have a site that only receives"
        if not self.evaluating_sites:
            return
        plain = Method(server_rule=self.ingredients.server_rule)
        if self.ingredients != plain or not isinstance(plain.server_rule, Mean | Blend | Adaptive):
            yield "a plan with a site that only evaluates needs a method in which the sites share the whole network"
        if self.statistics is not None:
            yield "a plan with statistics cannot have a site that only evaluates"

    @cached_property
    def evaluating_sites(self) -> frozenset[str]:
        """Return the sites that send measurements and an update of zeros."""
        return frozenset(site.name for site in self.sites if site.tier == "evaluation")

    @property
    def training_count(self) -> int:
        """Return how many sites contribute an update to every sum. Sites that only evaluate hide nobody's update."""
        return len(self.site_names) - len(self.evaluating_sites)

    @cached_property
    def receiving_sites(self) -> frozenset[str]:
        """Return the sites that send no number and receive the result."""
        return frozenset(site.name for site in self.sites if site.tier == "receiving")

    def tier_of(self, site: str) -> Literal["receiving", "statistics", "evaluation", "training"]:
        """Return what the plan requires of a site: only to receive, to send statistics, to evaluate, or to train."""
        if site in self.receiving_sites:
            return "receiving"
        if self.statistics is not None:
            return "statistics"
        return "evaluation" if site in self.evaluating_sites else "training"

    @property
    def ingredients(self) -> Method:
        """Return the plan's method as a record of its parts."""
        return self.method.method()

    @property
    def prior(self) -> Prior | None:
        """Return the settings of federated-prior, or None under any other method."""
        if not isinstance(self.method, FederatedPrior):
            return None
        return prior_of(self.method, self.concepts, self.privacy, self.site_names, self.assumed_colluders)

    @cached_property
    def private_training(self) -> PrivateTraining | None:
        """Return the record of training with differential privacy, or None if the plan trains without it."""
        promise = self.privacy
        if promise is None or promise.patients is None or not isinstance(self.architecture, DenseNetwork):
            return None
        sites, schedule = len(self.site_names), self.schedule
        honest = sites - self.assumed_colluders
        columns, rate, method = len(self.shared_columns), self.optimiser.learning_rate, self.ingredients
        return private_training_of(
            self.architecture, columns, promise, promise.patients, schedule, sites, honest, rate, method, self.seed
        )

    @property
    def private_statistics(self) -> PrivateStatistics | None:
        """Return the noisy statistics of this plan, or None if the plan has no private statistics."""
        if self.privacy is None or self.statistics is None:
            return None
        return PrivateStatistics(self.statistics, self.privacy, len(self.site_names) - self.assumed_colluders)

    @property
    def private_sums(self) -> int:
        """Return the number of noisy sums over the same patients in the whole run; 0 without `privacy`."""
        training = self.private_training
        return 0 if self.privacy is None else 1 if training is None else training.sums

    @property
    def private_releases(self) -> int:
        """Return how many contributions of a site one record of privacy cost covers. 0 without `privacy`."""
        return 0 if self.privacy is None else 1 if self.private_training is None else self.schedule.rounds

    @property
    def own_numbers(self) -> int:
        """Return the number of values in private layers trained with noise. These values never leave the site."""
        return 0 if self.private_training is None else self.private_training.own_numbers

    @property
    def noise_variance(self) -> int:
        """Return the variance of the noise that a site adds to each integer of a sum or local step; 0 without noise."""
        of_prior = None if self.prior is None else self.prior.private
        private = self.private_statistics or self.private_training or of_prior
        return 0 if private is None else private.share_variance

    @property
    def training_rounds(self) -> int:
        """Return the largest number of rounds in which a model is fitted."""
        return self.schedule.rounds if self.prior is None else self.prior.newton_rounds

    @property
    def conditions(self) -> Conditions:
        """Return the conditions that the method must satisfy."""
        schedule = self.schedule
        return Conditions(
            architecture=self.architecture,
            is_plain_descent=is_plain_descent(self.optimiser),
            has_constant_rate=self.rate_schedule == ConstantRate(name="constant"),
            has_equal_weights=self.weighting.name == "equal",
            has_whole_epochs=schedule.aggregate in ("every-epoch", "every-round"),
            training_rounds=schedule.rounds,
            ends_early=self.may_end_early,
            measures=self.measures_validation,
        )

    @property
    def has_probe(self) -> bool:
        """Return whether round 0 measures which layers to share, before training starts."""
        return isinstance(self.ingredients.federated, SensitivePrefix)

    @property
    def measures_validation(self) -> bool:
        """Return whether the sites' validation losses are summed."""
        return self.checkpoint == "global" or self.early_stopping is not None

    @property
    def has_validation_round(self) -> bool:
        """Return whether a round after the last training round measures the final parameters."""
        return self.checkpoint == "global"

    @property
    def may_end_early(self) -> bool:
        """Return whether training can end before its last round."""
        is_prior = isinstance(self.method, FederatedPrior) and self.privacy is None
        return self.early_stopping is not None or is_prior

    @property
    def rounds(self) -> int:
        """Return the number of all rounds of the run, including rounds that only measure."""
        if self.statistics is not None:
            return 1
        if self.prior is not None:
            return 1 if self.privacy is not None else 1 + self.training_rounds + 1
        return self.has_probe + self.schedule.rounds + self.has_validation_round

    @property
    def reads_concepts(self) -> bool:
        """Return whether every site must read the concepts' columns, for a shared layer or because of privacy."""
        if self.columns or not self.concepts or self.prior is not None or note_columns(self.architecture):
            return False
        return (self.privacy is not None and self.statistics is None) or "columns" in agreed_sizes(
            self.ingredients, self.architecture
        )

    @property
    def shared_columns(self) -> tuple[str, ...]:
        """Return the columns that set the sizes of the shared layers; empty if no shared layer reads columns."""
        return tuple(column.name for column in columns_of(self.concepts)) if self.reads_concepts else self.columns

    @property
    def recorded_columns(self) -> tuple[PartlyRecorded, ...]:
        """Return the shared columns that some sites do not record, each with the sites that record it."""
        if not self.reads_concepts:
            return self.partly_recorded
        return tuple(
            PartlyRecorded(column=column.name, recorded_by=column.concept.recorded_by)
            for column in columns_of(self.concepts)
            if column.concept.recorded_by is not None
        )

    @property
    def placeholder_columns(self) -> int:
        """Return a number of columns with which the shared tensors can be listed. The private tensors may differ."""
        shared = len(self.shared_columns) + note_columns(self.architecture)
        return shared + 1 if isinstance(self.architecture, ColumnsNetwork) else shared or 1

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

    @property
    def public_draws(self) -> bytes:
        """Return the 32-byte key of the public random draws. It depends on everything in the plan except masking."""
        return digest("public draws", self.model_copy(update={"secure_aggregation": "required"}).canonical)

    @cached_property
    def digest(self) -> bytes:
        """Return the SHA-256 of the canonical bytes, 32 bytes. A hospital approves this digest."""
        return digest("plan", self.canonical)
