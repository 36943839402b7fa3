"""Defines the network plan: a plan in which sites train a network together.

If a site does not record a column, the column's numbers in its update are 0, or follow from the plan alone. So their
sum is over the sites that record the column. The rules:

* a plan names the sites that record a column, unless all sites do;
* under masking, the plan is refused unless these sites are at least two more than the assumed colluders;
* each site's trainer compares its own table with the plan's declarations, and refuses a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, StringConstraints, Tag

from protos.plan.architecture import TENSOR_NAME, Architecture, ColumnsNetwork, DenseNetwork, network_tensors
from protos.plan.compatibility import agreed_sizes, missing_parts, why_impossible
from protos.plan.concepts import Concept, columns_of
from protos.plan.documents import COMPOSED, Document
from protos.plan.ingredients import (
    Adaptive,
    FederatedOnly,
    InnerProblem,
    Mean,
    Method,
    SensitivePrefix,
    federated_tensors,
)
from protos.plan.methods import MethodChoice
from protos.plan.optimisers import Loss, Optimiser, TaskDefault
from protos.plan.patient_privacy import TrainingPrivacy, why_not_private
from protos.plan.plan_head import MOST_SITES, ListedSite, PlanHead, Stages, why_not_listed
from protos.plan.private_training import UNPAID, PrivateTraining, why_no_private_network, why_no_private_steps
from protos.plan.schedules import Schedule
from protos.plan.weighting import RowWeights, Weighting
from protos.wire.messages import Stage

Seed: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 63)]
_Layer = Annotated[str, Field(pattern=TENSOR_NAME)]  # no control character can reach a screen or a log


ColumnName: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200), COMPOSED]
Recorders: TypeAlias = Annotated[tuple[str, ...], Field(max_length=100)]


class ListedColumn(Document):
    """An encoded column of the plan.

    `recorded_by` are the training sites that record it; None means all of them. If no site is listed, every site leaves
    the column out.
    """

    name: ColumnName
    recorded_by: Recorders | None = None


# A plan may write only a name instead of a column.
Column: TypeAlias = Annotated[
    Annotated[ColumnName, Tag("plain")] | Annotated[ListedColumn, Tag("record")],
    Discriminator(lambda found: "record" if isinstance(found, dict | Document) else "plain"),
]


class SeedStart(Document):
    """Values from the seed: equal ones at all sites, or own ones. Then the first mean is over different networks."""

    name: Literal["equal", "own"]
    seed: Seed


class FileStart(Document):
    """A safetensors file has first values, for example from an earlier study. Coordinator and sites have this file.

    `sha256` is the file's digest. `layers` are the layers whose tensors the file has; None means all shared and frozen
    ones. All other layers start from the seed.
    """

    name: Literal["file"]
    seed: Seed
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    layers: Annotated[tuple[_Layer, ...], Field(min_length=1, max_length=65_536)] | None = None

    @property
    def words(self) -> str:
        which = "All shared and frozen layers" if self.layers is None else f"The layers {', '.join(self.layers)}"
        return f"{which} start from the file with the SHA-256 {self.sha256}."


Start: TypeAlias = Annotated[SeedStart | FileStart, Field(discriminator="name")]


class NetworkSite(ListedSite):
    """A site of a network plan. A site of the tier `evaluation` sends measurements and an update of zeros."""

    tier: Literal["evaluation", "training"] = "training"


class NetworkPlan(PlanHead):
    """A plan in which sites train a network together."""

    kind: Literal["network"]
    sites: Annotated[tuple[NetworkSite, ...], Field(min_length=1, max_length=MOST_SITES)]
    privacy: TrainingPrivacy | None = None
    method: MethodChoice
    architecture: Architecture
    columns: tuple[Column, ...] = ()
    concepts: tuple[Concept, ...] = Field(default=(), max_length=500)
    outputs: Annotated[int, Field(ge=1, le=10_000)] | None = None
    schedule: Schedule
    optimiser: Optimiser
    loss: Loss = TaskDefault(name="task-default")
    weighting: Weighting
    start: Start
    checkpoint: Literal["latest", "local", "global"] = "local"

    def _reasons(self) -> Iterator[str]:
        checks = (self._of_evaluation, self._of_weighting, self._of_sizes, self._of_start)
        for check in checks:
            yield from check()
        yield from why_not_listed(self.concepts, self.site_names)
        settings = self.architecture, self.schedule, self.optimiser, self.weighting
        for reason in why_impossible(self.ingredients, *settings, measures=self.has_validation_round):
            yield f"the method {self.method_name} is impossible in this plan: {reason}"
        for reason in self._of_privacy():
            yield f"privacy is impossible in this plan: {reason}"

    def _of_privacy(self) -> Iterator[str]:
        if (promise := self.privacy) is None:
            return
        if not (reasons := [*why_not_private(self.ingredients, promise.noise)]):
            columns = len(self.shared_columns) if self.reads_concepts else None
            unpaid = {
                "weighting": self.weighting.name != "equal",
                "checkpoint": self.checkpoint == "global",
                "loss": self.loss != TaskDefault(name="task-default"),
                "start": self.start.name != "equal",
                "sites": bool(self.evaluating_sites),
            }
            reasons = [
                *why_no_private_network(self.architecture, columns, self.outputs),
                *why_no_private_steps(promise, self.schedule, self.optimiser, self.ingredients, self.honest),
                *(UNPAID[key] for key, is_there in unpaid.items() if is_there),
            ]
        yield from reasons

    def _of_start(self) -> Iterator[str]:
        if self.start.name == "own" and self.ingredients != Method(federated=self.ingredients.federated):
            yield "with start: own, the method may differ from fedavg only in the choice of shared parameters"
        if self.start.name == "own" and self.has_probe:
            yield "with start: own, the sites start differently, so the method cannot measure the layers"

    def _of_weighting(self) -> Iterator[str]:
        if not isinstance(self.weighting, RowWeights) or not self.weighting.exact:
            return
        if not self.masking.required:
            yield "exact row counts need masks, or a site's count would be visible"

    def _of_sizes(self) -> Iterator[str]:
        """Yield the mistakes in columns and outputs. A federated part has one size for all sites."""
        if len({column.name for column in self.listed_columns}) != len(self.columns):
            yield "the plan lists a column twice under columns"
        yield from why_refused(
            self.recorded_columns,
            training_sites=frozenset(self.site_names) - self.evaluating_sites,
            fewest=self.assumed_colluders + 2 if self.masking.required else 1,
        )
        if missing_parts(self.ingredients, self.architecture):
            return  # the network does not fit the method, and that error is reported
        agreed = agreed_sizes(self.ingredients, self.architecture)
        for key, is_given in (("columns", bool(self.shared_columns)), ("outputs", self.outputs is not None)):
            if key in agreed and not is_given:
                instead = ", or list concepts" if key == "columns" else ""
                sizes = f"shares layers whose size depends on {key}"
                yield f"the method {self.method_name} {sizes}. List the {key} in the plan{instead}"
            if is_given and key not in agreed and not (key == "columns" and self.reads_concepts):
                yield f"the {key} of each site stay private with {self.method_name}. Remove {key} from the plan"

    def _of_evaluation(self) -> Iterator[str]:
        if not self.evaluating_sites:
            return
        plain = Method(server_rule=self.ingredients.server_rule)
        if self.ingredients != plain or not isinstance(plain.server_rule, Mean | Adaptive):
            yield "a plan with a site that only evaluates needs a method in which the sites share the whole network"

    @property
    def method_name(self) -> str:
        return self.method.name

    @property
    def ingredients(self) -> Method:
        return self.method.method()

    @cached_property
    def private_training(self) -> PrivateTraining | None:
        promise, method = self.privacy, self.ingredients
        if promise is None or not isinstance(self.architecture, DenseNetwork):
            return None
        whole = network_tensors(self.architecture, columns=len(self.shared_columns), outputs=1)
        tensors = federated_tensors(method.federated, whole, self.seed)
        problem, rate = method.procedure, self.optimiser.learning_rate
        inner = problem if isinstance(problem, InnerProblem) else None
        return PrivateTraining(
            network=whole,
            tensors=tensors,
            has_own_steps=len(tensors) < len(whole) and not isinstance(problem, FederatedOnly),
            promise=promise,
            rounds=self.schedule.rounds,
            steps=self.schedule.steps_per_round,
            sites=len(self.site_names),
            honest=1 if promise.noise == "local" else self.honest,
            learning_rate=rate,
            inner=1 if inner is None else inner.steps,
            pull=rate * method.proximal_strength,
            follow=0.0 if inner is None else inner.rate * inner.strength,
        )

    @cached_property
    def listed_columns(self) -> tuple[ListedColumn, ...]:
        return tuple(ListedColumn(name=column) if isinstance(column, str) else column for column in self.columns)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Return the columns that the network of each site reads, in this order."""
        return tuple(column.name for column in self.listed_columns if column.recorded_by != ())

    @property
    def unused_columns(self) -> tuple[str, ...]:
        """Return the columns that every site leaves out, because too few sites record them."""
        return tuple(column.name for column in self.listed_columns if column.recorded_by == ())

    @property
    def seed(self) -> int:
        return self.start.seed

    @property
    def starting_file(self) -> FileStart | None:
        """Return the file with first values, or None."""
        return self.start if isinstance(self.start, FileStart) else None

    @property
    def site_weights(self) -> Weighting:
        return self.weighting

    @property
    def private_sums(self) -> int:
        return 0 if self.private_training is None else self.private_training.sums

    @property
    def private_releases(self) -> int:
        return 0 if self.privacy is None else self.schedule.rounds

    @property
    def sends_updates(self) -> bool:
        return self.privacy is None

    @property
    def own_numbers(self) -> int:
        return 0 if self.private_training is None else self.private_training.own_numbers

    @property
    def noise_variance(self) -> int:
        return 0 if self.private_training is None else self.private_training.share_variance

    @cached_property
    def stages(self) -> Stages:
        """Return the stages: a probe that chooses layers, the training, and the validation of the final parameters."""
        probe = isinstance(self.ingredients.federated, SensitivePrefix), Stage.PROBE
        validation = self.checkpoint == "global", Stage.VALIDATION
        training: Stages = ((Stage.TRAINING, self.schedule.rounds),)
        first, last = (((stage, 1),) if is_there else () for is_there, stage in (probe, validation))
        return (*first, *training, *last)

    @property
    def reads_concepts(self) -> bool:
        """Return whether every site must read the concepts' columns, for a shared layer or because of privacy."""
        if self.columns or not self.concepts:
            return False
        return self.privacy is not None or "columns" in agreed_sizes(self.ingredients, self.architecture)

    @cached_property
    def shared_columns(self) -> tuple[str, ...]:
        if self.reads_concepts:
            return tuple(column.name for column in columns_of(self.concepts))
        return self.column_names

    @property
    def recorded_columns(self) -> tuple[ListedColumn, ...]:
        """Return the shared columns that some sites do not record, each with the sites that record it."""
        recorded = tuple(column for column in self.listed_columns if column.recorded_by != ())
        if self.reads_concepts:
            found = columns_of(self.concepts)
            recorded = tuple(ListedColumn(name=each.name, recorded_by=each.concept.recorded_by) for each in found)
        return tuple(column for column in recorded if column.recorded_by is not None)

    @property
    def placeholder_columns(self) -> int:
        """Return a number of columns with which the shared tensors can be listed. The private tensors may differ."""
        shared = len(self.shared_columns)
        return shared + 1 if isinstance(self.architecture, ColumnsNetwork) else shared or 1


def why_refused(columns: tuple[ListedColumn, ...], *, training_sites: frozenset[str], fewest: int) -> Iterator[str]:
    """Yield each reason why the plan's list of partly recorded columns is refused, as one clause.

    Args:
        fewest: the number of contributors that every number needs.
    """
    for entry in columns:
        listed = entry.recorded_by or ()
        sites = frozenset(listed)
        if not sites <= training_sites or len(sites) != len(listed):
            yield (
                f"recorded_by of the column {entry.name} lists a site twice, or lists a site that does not train in "
                "this plan"
            )
        elif len(sites) < fewest:
            yield (
                f"only {len(sites)} sites record the column {entry.name}, but masking needs at least {fewest} sites. "
                "Set recorded_by to [], so that every site leaves it out, or choose a method that keeps its layer "
                "private (global-layers)"
            )
