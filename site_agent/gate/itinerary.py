"""Decides which rounds a coordinator may offer in one run, from the site's own memory.

The rules, beside those of the plan (protos/plan/exchange.py):

* a new round comes after all others; one that comes again, after a crash somewhere, is the same step, byte
  for byte, under no earlier attempt; what the run no longer goes back to is over for good;
* the rounds in which nothing was trained yet (the probe, the statistics, the first training round) start from
  the values that the plan gives; this site computes them itself and refuses any others;
* stages only advance, and a measurement is not repeated in a second round;
* the layers that PLayer-FL's probe has chosen stay the chosen ones to the end;
* a result comes after the last round, which the plan fixes unless training may end early;
* only the last alternative of a sweep ends with a choice, which is one of the alternatives.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Final

from protos.plan.architecture import TensorSpec
from protos.plan.exchange import Exchange, Exchanges, is_measured
from protos.plan.manifest import Manifest
from protos.plan.plan import Plan
from protos.wire.messages import Finish, MalformedMessage, Offer, Stage
from protos.wire.positions import position

_ORDER: Final = (
    Stage.STATISTICS, Stage.PROBE, Stage.TRAINING, Stage.NEWTON, Stage.VALIDATION, Stage.REPORT, Stage.GUARD,
)  # fmt: skip
_REPEATED: Final = (Stage.TRAINING, Stage.NEWTON)


class Itinerary:
    """The offers that this site received in a run, and the messages that may therefore follow."""

    def __init__(
        self,
        run: str,
        plan: Plan,
        manifest: Manifest,
        released: Iterable[Mapping[str, Any]],
        *,
        only_receives: bool = False,
    ) -> None:
        """`released` is what left this site in this run, oldest first, in the words of the audit log.

        A site that `only_receives` was offered no round, so only the plan limits when a result may come.
        """
        self._run, self._plan, self._only_receives = run, plan, only_receives
        self._exchanges = Exchanges(plan, manifest)
        self._known: dict[int, tuple[int, bytes]] = {}  # of each round the newest attempt, and its position
        self._oldest = 0
        self.newest: int | None = None  # the round that was offered last, by this process
        self._last: tuple[int, Stage] | None = None
        self._chosen: bytes | None = None
        for facts in released:
            stage, layers = Stage[facts["stage"].upper()], bytes.fromhex(facts["offered_layers"])
            position_then = bytes.fromhex(facts.get("position", ""))  # earlier versions did not write it
            self._known[facts["round"]] = (facts["attempt"], position_then)
            self._remember(facts["round"], stage, layers)

    def accept(self, offer: Offer) -> Exchange:
        """Return what an offered round sends and receives.

        Raises:
            MalformedMessage: an honest coordinator would not offer this.
        """
        here, known = position(self._run, offer), self._known.get(offer.round)
        newest = max(self._known, default=-1)
        if offer.round < self._oldest or (offer.round < newest if known is None else offer.attempt < known[0]):
            raise MalformedMessage("a round that is over")
        if known is not None and known[1] not in (here, b""):
            raise MalformedMessage("other parameters for the same step")
        exchange = self._exchanges.of(offer.round, offer.stage, offer.layers)
        self._check_stage(offer)
        self._check_layers(offer.stage, offer.layers)
        self._check_best(offer.best_round)
        self._check_start(offer, exchange)
        self._check_return(offer.returned_to)
        self._oldest = max(self._oldest, offer.oldest)
        self._known[offer.round], self.newest = (offer.attempt, here), offer.round
        for number in [number for number in self._known if number < self._oldest]:
            del self._known[number]
        self._remember(offer.round, offer.stage, offer.layers)
        return exchange

    def accept_result(self, finish: Finish) -> tuple[TensorSpec, ...]:
        """Return the tensors that a site receives with a result.

        Raises:
            MalformedMessage: it comes too early, or names other layers or a round that was not measured.
        """
        closing = [Stage.VALIDATION] if self._plan.has_validation_round else []
        closing += [Stage.REPORT] if self._plan.gain == "sums" else []
        closing += [Stage.STATISTICS] if self._plan.statistics is not None else []
        if self._plan.prior is not None:
            closing.append(Stage.GUARD if self._plan.privacy is None else Stage.STATISTICS)
        wanted = (finish.round - 1, closing[-1] if closing else Stage.TRAINING)
        is_last = finish.round == self._plan.rounds or self._plan.may_end_early
        is_next = 0 < finish.round <= self._plan.rounds if self._only_receives else self._last == wanted
        if not is_next or not is_last:
            raise MalformedMessage("a result before the last round")
        self._check_layers(None, finish.layers)
        self._check_best(finish.best_round)
        self._check_return(finish.returned_to)
        sweep, chosen = self._plan.sweep, finish.alternative
        if chosen is not None and (sweep is None or not sweep.is_last or chosen >= len(sweep.alternatives)):
            raise MalformedMessage("a choice among alternatives that the plan does not have")
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
        """Before any training the values are the plan's; later ones follow from sums that this site cannot check."""
        is_start = offer.round <= self._plan.has_probe
        if is_start and not hmac.compare_digest(offer.parameters_digest, self._exchanges.start_digest(exchange)):
            raise MalformedMessage("first parameters that are not the plan's")

    def _check_best(self, best_round: int | None) -> None:
        if best_round is None:
            return
        may_be_validation = self._plan.has_validation_round and best_round > self._plan.has_probe
        if not self._plan.measures_validation or not (may_be_validation or is_measured(self._plan, best_round)):
            raise MalformedMessage("a best round that no site has measured")

    def _check_return(self, returned_to: int | None) -> None:
        if returned_to is None:
            return
        if self._plan.acceptance is None or returned_to < self._plan.has_probe:
            raise MalformedMessage("a return to parameters that no site could accept")

    def _remember(self, round_number: int, stage: Stage, layers: bytes) -> None:
        if self._last is None or round_number >= self._last[0]:
            self._last = (round_number, stage)
        if self._plan.has_probe and stage is not Stage.PROBE:
            self._chosen = layers
