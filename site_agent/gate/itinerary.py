"""Decides which rounds of a run a coordinator may offer, from this site's own records of the earlier rounds.

The rules, in addition to those of the plan (protos/plan/exchange.py):

* a new round comes after all others. A repeated round is the same step with the same bytes, under no earlier attempt.
  Rounds to which the run cannot return are final;
* in the rounds before any training (the probe, the statistics, the first training round) the site computes the plan's
  values itself and refuses any others;
* stages only advance, and a measurement is not repeated in a second round;
* the layers that PLayer-FL's probe has chosen stay the chosen ones to the end;
* the scales of short integers are the plan's in the first round, and grow by few steps from one round to the next. A
  round whose predecessor's scales are not known here is refused;
* a result comes after the last round, which the plan fixes unless training may end early.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Final

from protos.plan.architecture import TensorSpec
from protos.plan.exchange import Exchange, Exchanges, is_measured
from protos.plan.manifest import Manifest
from protos.plan.plan import Plan
from protos.plan.short_wire import why_not_scales
from protos.wire.messages import Finish, MalformedMessage, Offer, Stage
from protos.wire.positions import position

_ORDER: Final = (
    Stage.STATISTICS, Stage.PROBE, Stage.TRAINING, Stage.NEWTON, Stage.VALIDATION, Stage.GUARD,
)  # fmt: skip
_REPEATED: Final = (Stage.TRAINING, Stage.NEWTON)


class Itinerary:
    """Checks the offers of one run against the earlier offers that this site received."""

    def __init__(
        self, plan: Plan, manifest: Manifest, released: Iterable[Mapping[str, Any]], *, only_receives: bool = False
    ) -> None:
        """Read the earlier rounds. `released` are the records of this run's releases, also those of earlier logs.

        A site that `only_receives` was offered no round, so only the plan limits when a result can come.
        """
        self._plan, self._manifest, self._only_receives = plan, manifest, only_receives
        self._exchanges = Exchanges(plan, manifest)
        self._known: dict[int, tuple[int, bytes]] = {}  # for each round the newest attempt, and its position
        self._oldest = 0
        self.newest: int | None = None  # the round that was offered last, by this process
        self._last: tuple[int, Stage] | None = None
        self._chosen: bytes | None = None
        self._scales = b""  # of the newest round
        for facts in sorted(released, key=lambda facts: (facts["round"], facts["attempt"])):
            stage, layers = Stage[facts["stage"].upper()], bytes.fromhex(facts["offered_layers"])
            position_then = bytes.fromhex(facts["position"])
            self._known[facts["round"]] = (facts["attempt"], position_then)
            self._scales = bytes.fromhex(facts["scales"])
            self._remember(facts["round"], stage, layers)
        self._highest = max(self._known, default=-1)

    def has(self, round_number: int) -> bool:
        """Return whether the coordinator has offered a round to this site before."""
        return round_number in self._known

    def accept(self, offer: Offer) -> Exchange:
        """Check a round that the coordinator offers, and return what this site sends and receives in this round.

        Raises:
            MalformedMessage: an honest coordinator would not offer this.
        """
        here, known, newest = position(self._plan.run_name, offer), self._known.get(offer.round), self._highest
        if offer.round < self._oldest or (offer.round < newest if known is None else offer.attempt < known[0]):
            raise MalformedMessage("a round that is over")
        if known is not None and known[1] not in (here, b""):
            raise MalformedMessage("other parameters for the same step")
        exchange = self._exchanges.of(offer.round, offer.stage, offer.layers)
        self._check_stage(offer)
        self._check_layers(offer.stage, offer.layers)
        self._check_best(offer.best_round)
        self._check_start(offer, exchange)
        self._check_scales(offer)
        self._known[offer.round], self.newest = (offer.attempt, here), offer.round
        self._highest = max(newest, offer.round)
        if offer.oldest > self._oldest:  # not in each round, because a run may have many thousand
            self._oldest = offer.oldest
            self._known = {number: known for number, known in self._known.items() if number >= offer.oldest}
        self._remember(offer.round, offer.stage, offer.layers)
        return exchange

    def accept_result(self, finish: Finish) -> tuple[TensorSpec, ...]:
        """Check the announced result of a run, and return which tensors (number arrays) this site receives with it.

        Raises:
            MalformedMessage: the result comes too early, or names other layers or a round that was not measured.
        """
        wanted = (finish.round - 1, self._plan.stages[-1][0])
        is_last = finish.round == self._plan.rounds or self._plan.may_end_early
        is_next = 0 < finish.round <= self._plan.rounds if self._only_receives else self._last == wanted
        if not is_next or not is_last:
            raise MalformedMessage("a result before the last round")
        self._check_layers(None, finish.layers)
        self._check_best(finish.best_round)
        return self._exchanges.result(finish.layers)

    def _check_stage(self, offer: Offer) -> None:
        if self._last is None or offer.round < self._last[0]:
            return
        last_round, stage = self._last
        is_again = stage not in _REPEATED and stage is offer.stage and offer.round > last_round
        if is_again or _ORDER.index(offer.stage) < _ORDER.index(stage):
            raise MalformedMessage("a stage that is over")

    def _check_layers(self, stage: Stage | None, layers: bytes) -> None:
        if stage is not Stage.PROBE and self._chosen not in (None, layers):
            raise MalformedMessage("other layers than those that the probe has chosen")

    def _check_start(self, offer: Offer, exchange: Exchange) -> None:
        """Check that the values before any training are the plan's.

        Later values follow from sums that a site cannot check.
        """
        is_start = offer.round <= self._plan.has_probe
        if is_start and not hmac.compare_digest(offer.parameters_digest, self._exchanges.start_digest(exchange)):
            raise MalformedMessage("first parameters that are not the plan's")

    def _check_scales(self, offer: Offer) -> None:
        if offer.round in self._known:
            return  # its position has the scales
        is_start = offer.round <= self._plan.has_probe
        before = None if is_start else self._scales if offer.round == self._highest + 1 else b""
        why_not = why_not_scales(self._plan, self._manifest, offer.scales, before)
        if why_not is None and is_start and offer.summed_rows:
            why_not = "rows of a sum before the first"
        if why_not is not None:
            raise MalformedMessage(why_not)
        self._scales = offer.scales

    def _check_best(self, best_round: int | None) -> None:
        if best_round is None:
            return
        is_validation = best_round == self._plan.rounds - 1
        if not self._plan.has_validation_round or not (is_validation or is_measured(self._plan, best_round)):
            raise MalformedMessage("a best round that no site has measured")

    def _remember(self, round_number: int, stage: Stage, layers: bytes) -> None:
        if self._last is None or round_number >= self._last[0]:
            self._last = (round_number, stage)
        if self._plan.has_probe and stage is not Stage.PROBE:
            self._chosen = layers
