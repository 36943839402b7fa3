"""Executes one run of one plan: stores its parameters, the current sum of contributions, and its state.

A run contains sums and never one site's values. The plan and the decisions of earlier rounds determine what is sent and
collected in a round.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coordinator.rounds.aggregation import RunningSum
from coordinator.rounds.course import Course, analysed, announce, fitted, follow, layers_at, layers_of_result, rounds_of
from coordinator.rounds.phases import (
    Acknowledged,
    Advertised,
    Agreeing,
    Collecting,
    Completed,
    Event,
    FoundWrong,
    Gathering,
    Interrupted,
    Moved,
    Over,
    State,
    Terms,
)
from coordinator.rounds.transfers import RoundTimes, unseen_seconds
from coordinator.storage.snapshots import Snapshot
from protos.numbers.fixed_point import FixedPoint
from protos.numbers.round_sums import Sums
from protos.numbers.short_integers import Integers, pack_exponents
from protos.plan.announcing_plan import AnnouncingPlan
from protos.plan.architecture import TensorSpec
from protos.plan.exchange import Exchange, Exchanges, stage_at
from protos.plan.manifest import ROWS, Manifest, manifest_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.plan.privacy_in_words import price_in_words
from protos.plan.server_rules import RuleState, apply_rule, begin_rule
from protos.plan.short_wire import first_exponents, next_exponents, sum_goes_down
from protos.plan.statistics_plan import StatisticsPlan
from protos.plan.weighting import RowWeights
from protos.wire.messages import (
    Chunk,
    Finish,
    Join,
    KeyAdvert,
    KeySessionAcknowledgement,
    MalformedMessage,
    Offer,
    Stage,
)
from protos.wire.positions import parameters_digest

Float32: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Offered:
    """The first offer of a round, with the parameters that are sent with the offer, or the sum that leads to them."""

    offer: Offer
    exchange: Exchange
    values: Float32 = field(repr=False)
    sum: Integers | None = field(default=None, repr=False)


@dataclass
class Run:
    """One run: its parameters, its sums and its state. All three change during the run.

    Attributes:
        values: float32, the federated parameters in the manifest's order, followed by their control variates if the
            method has any. A message is a view of it whenever all layers take part.
    """

    name: str
    plan: Plan
    manifest: Manifest
    exchanges: Exchanges
    terms: Terms
    state: State
    course: Course
    values: Float32 = field(repr=False)
    running_sum: RunningSum = field(repr=False)
    rule_state: RuleState = field(repr=False)
    rounds_made: int = 0
    times: RoundTimes = field(default_factory=lambda: RoundTimes(time.monotonic), repr=False)
    adverts: dict[str, KeyAdvert] = field(default_factory=dict, repr=False)
    acknowledgements: dict[str, KeySessionAcknowledgement] = field(default_factory=dict, repr=False)
    _offered: Offered | None = field(default=None, repr=False)
    _newest_sum: tuple[int, Integers] | None = field(default=None, repr=False)  # the number of its round, and the sum
    _training_contributors: int = 0

    @property
    def parameters(self) -> Float32:
        """Return all shared parameters, float32 of shape (manifest.parameters,)."""
        return self.values[: self.manifest.parameters]

    @property
    def is_consistent(self) -> bool:
        """Return whether all check words are correct, and honest sites could have sent numbers that add up so."""
        assert self._offered is not None
        exchange, sites = self._offered.exchange, self.running_sum.sites
        sums = self._sums(exchange)
        limits = zip(sums.scalars.values(), *exchange.scalar_limits, strict=True)
        return (
            self.running_sum.is_consistent
            and all(sites * lowest <= total <= sites * largest for total, lowest, largest in limits)
            and self._fewest_rows <= sums.scalars.get(ROWS, self._fewest_rows)
            and self._is_in_range(sums)
        )

    @property
    def _fewest_rows(self) -> int:
        weighting = self.plan.site_weights
        return self._training_contributors * weighting.fewest_rows if isinstance(weighting, RowWeights) else 0

    def _is_in_range(self, sums: Sums) -> bool:
        if not sums.updates.size or sums.exponents:  # honest sums of short integers use all of their range
            return True
        fixed_point = FixedPoint(self.plan.masking.clipping_range, len(self.plan.sites))
        most = fixed_point.most(sums.weight(self.plan.site_weights), sums.contributors)
        return -most <= int(sums.updates.min()) and int(sums.updates.max()) <= most

    def offered(self, round_number: int) -> Offered:
        """Return the parameters and facts that the coordinator sends to sites in every attempt at a round."""
        if self._offered is None or self._offered.offer.round != round_number:
            course = self.course
            stage = stage_at(self.plan, round_number, course.training_rounds)
            assert stage is not None
            layers = layers_at(self.plan, course, round_number)
            exchange = self.exchanges.of(round_number, stage, layers)
            values = self._sent(exchange.down, has_controls=exchange.has_controls)
            digest, scales = parameters_digest(values), pack_exponents(course.exponents)
            facts = digest, stage, layers, course.best_round
            offer = Offer(round_number, 0, *facts, scales=scales, summed_rows=course.summed_rows)
            self._offered = Offered(offer, exchange, values, self.sum_before(round_number))
        return self._offered

    def go_back(self, snapshot: Snapshot | None) -> None:
        """Restore the run's state before a round from a snapshot, or without a snapshot that before the first round."""
        start = new_run(self.plan, self.terms, self.state, self.manifest)
        state = snapshot or start.before(0)
        # New memory is used, because a slow peer may still be reading the offered values from the old memory.
        self.values = state.values.copy()
        for name, array in self.rule_state.items():
            array[...] = state.rule_state[name]
        self.course, self.rounds_made, self._offered, self._newest_sum = state.course, state.round, None, None
        self.terms = replace(self.terms, rounds=rounds_of(self.plan, state.course))

    def before(self, round_number: int) -> Snapshot:
        """Return the run's current state, which is the state before this round. Its arrays are not copied."""
        return Snapshot(round=round_number, course=self.course, values=self.values, rule_state=self.rule_state)

    def begin_sum(self, round_number: int, contributors: Collection[str]) -> None:
        self.running_sum.reset(self.offered(round_number).exchange.layout, contributors)
        self._training_contributors = len(set(contributors) - self.plan.evaluating_sites)

    def close_round(self, round_number: int) -> None:
        """Compute new shared parameters from the complete sum by the server rule. Decide how the run continues."""
        assert self._offered is not None
        exchange = self._offered.exchange
        sums = self._sums(exchange)
        if isinstance(self.plan, NetworkPlan) and exchange.stage is Stage.TRAINING:
            apply_rule(self.plan, self.manifest, sums, self.parameters, self.rule_state)
            if exchange.has_controls:
                self.values[self.manifest.parameters :] = self.rule_state["control"]
            exponents = next_exponents(self.plan, self.manifest, sums)
            self.course = replace(self.course, exponents=exponents, summed_rows=sums.scalars.get(ROWS, 0))
            if sum_goes_down(self.plan, exchange):
                self._newest_sum = round_number, self.running_sum.keep()
        self.course = follow(self.plan, self.course, round_number, sums)
        if isinstance(self.plan, AnnouncingPlan):
            self.course = announce(self.plan, self.course, round_number, sums, self.values)
        self.terms = replace(self.terms, rounds=rounds_of(self.plan, self.course))
        self.rounds_made += 1

    def result(self) -> tuple[Finish, Float32]:
        """Return the last message of the run, and the vector of result parameters that follows this message."""
        layers = layers_of_result(self.course)
        values = self._sent(self.exchanges.result(layers), has_controls=False)
        facts = parameters_digest(values), layers, self.course.best_round
        return Finish(self.rounds_made, *facts, summed_rows=self.course.summed_rows), values

    def sum_before(self, round_number: int) -> Integers | None:
        """Return the sum of the round before this one, if it can be sent and if this process made it."""
        newest = self._newest_sum
        return newest[1] if newest is not None and newest[0] == round_number - 1 else None

    def views(self) -> dict[str, Float32]:
        """Return the shared parameters as named arrays, without copying them."""
        views = self.manifest.views(self.parameters)
        if isinstance(self.plan, PriorPlan):
            return fitted(self.plan, self.course, self.values, self.rounds_made)
        if isinstance(self.plan, StatisticsPlan):
            return {}
        return {tensor.name: views[tensor.name] for tensor in self.exchanges.result(layers_of_result(self.course))}

    def analyses(self) -> list[dict[str, Any]]:
        """Return what the analyses of a statistics plan print, in the plan's sequence. Empty for other plans."""
        if not isinstance(self.plan, StatisticsPlan):
            return []
        return analysed(self.plan, self.course, self.values, self.rounds_made)

    def facts(self) -> dict[str, Any]:  # Any: every type that JSON has
        """Return the facts about the run that may be public, as values for JSON."""
        course, layers, promise = self.course, self.manifest.layers, self.plan.privacy
        return {
            "run": self.name,
            "study": self.plan.study,
            "version": self.plan.version,
            "plan_digest": self.plan.digest.hex(),
            "manifest_digest": self.manifest.digest.hex(),
            "method": self.plan.method_name,
            "seed": self.plan.seed,
            "masked": self.plan.masking.required,
            "privacy": None if promise is None else price_in_words(promise, self.plan.private_sums),
            "phase": _phase(self.state),
            "rounds": self.terms.rounds,
            "rounds_made": self.rounds_made,
            "training_rounds": course.training_rounds or self.plan.training_rounds,
            "parameters": self.manifest.parameters,
            "median_round_seconds": self.times.median,
            "chosen_layers": list(compress(layers, course.chosen)) if course.chosen else None,
            "sensitivities": list(course.sensitivities) or None,
            "best_round": course.best_round,
            "best_validation_loss": course.best[1] if course.best else None,
        }

    def _sums(self, exchange: Exchange) -> Sums:
        found = self.running_sum
        return Sums(
            exchange=exchange,
            contributors=self._training_contributors,
            updates=found.updates[: exchange.updates],
            scalars=dict(zip(exchange.scalar_names, found.scalars, strict=True)),
            exponents=self.course.exponents,
        )

    def _sent(self, tensors: tuple[TensorSpec, ...], *, has_controls: bool) -> Float32:
        """Return the parameters of these tensors as one vector: a copy only if some of the manifest's are absent."""
        count = self.manifest.parameters
        if isinstance(self.plan, AnnouncingPlan):
            return self.values[: sum(tensor.number_count for tensor in tensors)]
        if len(tensors) == len(self.manifest.tensors):
            return self.values if has_controls else self.values[:count]
        places = [self.manifest.places[tensor.name] for tensor in tensors]
        places += [slice(count + place.start, count + place.stop) for place in places if has_controls]
        return np.concatenate([self.values[place] for place in places] or [np.empty(0, np.float32)])


def new_run(plan: Plan, terms: Terms, state: State, manifest: Manifest | None = None) -> Run:
    """Return a new run before its first round, with the plan's initial parameters and an empty sum.

    A plan with a starting file needs the manifest that has the file's values.
    """
    manifest, method = manifest or manifest_of(plan), plan.ingredients
    count = manifest.parameters * (2 if method.has_controls else 1)
    values = np.zeros(plan.tensor.number_count if isinstance(plan, AnnouncingPlan) else count, np.float32)
    values[: manifest.parameters] = manifest.initial_parameters(plan.seed)
    return Run(
        name=plan.run_name,
        plan=plan,
        manifest=manifest,
        exchanges=Exchanges(plan, manifest),
        terms=terms,
        state=state,
        course=Course(exponents=first_exponents(plan, manifest)),
        values=values,
        rule_state=begin_rule(method.server_rule, manifest.parameters),
        running_sum=RunningSum(manifest.parameters, plan.bits),
    )


def _phase(state: State) -> str:
    if isinstance(state, Collecting) and not state.complete:
        return "training"
    return type(state).__name__.lower()


def terms_of(plan: Plan, parameters: int = 0) -> Terms:
    """Return the parts of a plan that decide how its run proceeds. Its model has so many parameters."""
    is_quick = isinstance(plan, NetworkPlan) and plan.schedule.aggregate == "every-batch"
    return Terms(
        sites=frozenset(plan.site_names),
        receivers=plan.receiving_sites,
        rounds=plan.rounds,
        seconds=plan.timing.contribute_seconds * (1 if is_quick else 2) + unseen_seconds(parameters),
        result_seconds=plan.timing.contribute_seconds + unseen_seconds(parameters),
        is_masked=plan.masking.required,
        deadlines=plan.timing,
    )


def refuse_identity(plan: Plan, site: str, identity_fingerprint: str | None) -> str | None:
    """Return why a site may not take part in the run of a plan. Return None if the site may take part.

    A certificate alone is not enough: the plan lists each site by the fingerprint of its identity key, and the register
    must have that key under the site's name.
    """
    listed = {entry.name: entry.identity for entry in plan.sites}
    if site not in listed:
        return f"the plan {plan.study} does not list {site}"
    if listed[site] != identity_fingerprint:
        return f"the plan {plan.study} lists {site} with another identity key"
    return None


def refuse_join(plan: Plan, manifest: Manifest, join: Join) -> str | None:
    """Return why the agreement that a site sent does not match the plan. Return None if the agreement matches."""
    if join.plan_digest != plan.digest:
        return "the site agreed to another plan"
    if join.manifest_digest != manifest.digest:
        return "the tensors that the site would send differ from the plan"
    return None


def hear_of_keys(run: Run, site: str, message: KeyAdvert | KeySessionAcknowledgement) -> Event | None:
    """Store a site's message about masking keys. Only the other sites can check what the message contains.

    Raises:
        MalformedMessage: the message has another site's name.
    """
    state = run.state
    if message.site != site:
        raise MalformedMessage("a key or an acknowledgement in another site's name")
    if not isinstance(state, Agreeing) or message.key_session != state.attempt.key_session:
        return None  # an agreement that was restarted in the meantime
    if isinstance(message, KeyAdvert):
        run.adverts.setdefault(site, message)
        return Advertised(site, message.key_session)
    run.acknowledgements.setdefault(site, message)
    return Acknowledged(site, message.key_session)


def uploaded(run: Run, site: str) -> tuple[int, int]:
    """Return how many bytes of a site's contribution have arrived in the current attempt, and how many it has."""
    assert run._offered is not None
    layout = run._offered.exchange.layout
    return min(layout.total_bytes, run.running_sum.arrived(site) * layout.chunk_bytes(0)), layout.total_bytes


def hear_chunk(run: Run, site: str, chunk: Chunk) -> Event | None:
    """Add a chunk of a site's contribution to the sum of the current attempt at the round.

    Raises:
        MalformedMessage: this attempt collects no chunks, or the chunk is not the site's next one.
    """
    state, at = run.state, (chunk.round, chunk.attempt)
    if isinstance(state, Gathering | Over):
        raise MalformedMessage("a chunk of a round that is not collecting")
    current = (state.attempt.round, state.attempt.number)
    if not isinstance(state, Collecting) or at != current:
        was_made = chunk.attempt <= run.terms.past.get(chunk.round, -1)
        if at < current or was_made or (at == current and isinstance(state, Interrupted)):
            return None  # the chunk belongs to an attempt that became void before the chunk arrived
        raise MalformedMessage("a chunk of a round that is not collecting")
    if not run.running_sum.add(site, chunk.index, chunk.body):
        return Moved(site)
    if not run.running_sum.is_complete or run.is_consistent:
        return Completed(site)
    return FoundWrong(is_void=run.running_sum.is_void)
