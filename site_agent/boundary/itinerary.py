"""Which rounds a coordinator may offer in one run, whatever it says; the memory of one site.

The rules, beside those of the plan (protos/exchange.py):

* rounds and attempts only rise, and a step that comes again is the same step, byte for byte;
* stages only advance, and a round that only measures comes once;
* the layers that PLayer-FL's probe has chosen stay the chosen ones to the end;
* a result comes after the last round, which the plan fixes unless training may end early.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from protos.architecture import TensorSpec
from protos.exchange import Exchange, Exchanges, is_measured
from protos.manifest import Manifest
from protos.messages import Finish, MalformedMessage, Offer, Stage
from protos.parameters import position
from protos.plan import Plan

_ORDER: Final = (Stage.PROBE, Stage.TRAINING, Stage.VALIDATION, Stage.REPORT)


class Itinerary:
    """What was offered to this site in a run, and what therefore may come next."""

    def __init__(self, run: str, plan: Plan, manifest: Manifest, released: Iterable[Mapping[str, Any]]) -> None:
        """`released` are the audit log's records of what left this site in this run, oldest first."""
        self._run, self._plan = run, plan
        self._exchanges = Exchanges(plan, manifest)
        self._highest = (0, -1)
        self._offered = b""  # the position that was offered last
        self._last: tuple[int, Stage] | None = None
        self._chosen: bytes | None = None
        for facts in released:
            self._remember(facts["round"], Stage[facts["stage"].upper()], bytes.fromhex(facts["offered_layers"]))

    def accept(self, offer: Offer) -> Exchange:
        """What travels in an offered round.

        Raises:
            MalformedMessage: an honest coordinator would not offer this.
        """
        at, here = (offer.round, offer.attempt), position(self._run, offer)
        if at < self._highest:
            raise MalformedMessage("a round that is over")
        if self._offered and offer.round == self._highest[0] and here != self._offered:
            raise MalformedMessage("other parameters for the same step")
        exchange = self._exchanges.of(offer.round, offer.stage, offer.layers)
        self._check_stage(offer)
        self._check_layers(offer.stage, offer.layers)
        self._check_best(offer.best_round)
        self._highest, self._offered = at, here
        self._remember(offer.round, offer.stage, offer.layers)
        return exchange

    def accept_result(self, finish: Finish) -> tuple[TensorSpec, ...]:
        """The tensors whose values come down with a result.

        Raises:
            MalformedMessage: it comes too early, or names other layers or a round that was not measured.
        """
        closing = [Stage.VALIDATION] if self._plan.has_validation_round else []
        closing += [Stage.REPORT] if self._plan.gain == "sums" else []
        wanted = (finish.round - 1, closing[-1] if closing else Stage.TRAINING)
        is_last = finish.round == self._plan.rounds or self._plan.early_stopping is not None
        if self._last != wanted or not is_last:
            raise MalformedMessage("a result before the last round")
        self._check_layers(None, finish.layers)
        self._check_best(finish.best_round)
        return self._exchanges.result(finish.layers)

    def _check_stage(self, offer: Offer) -> None:
        if self._last is None or offer.round < self._last[0]:
            return
        last_round, stage = self._last
        is_again = stage is not Stage.TRAINING and stage is offer.stage and offer.round > last_round
        if is_again or _ORDER.index(offer.stage) < _ORDER.index(stage):
            raise MalformedMessage("a stage that is over")

    def _check_layers(self, stage: Stage | None, layers: bytes) -> None:
        if stage is not Stage.PROBE and self._chosen not in (None, layers):
            raise MalformedMessage("other layers than those that the probe has chosen")

    def _check_best(self, best_round: int | None) -> None:
        if best_round is None:
            return
        may_be_validation = self._plan.has_validation_round and best_round > self._plan.has_probe
        if not self._plan.measures_validation or not (may_be_validation or is_measured(self._plan, best_round)):
            raise MalformedMessage("a best round that no site has measured")

    def _remember(self, round_number: int, stage: Stage, layers: bytes) -> None:
        if self._last is None or round_number >= self._last[0]:
            self._last = (round_number, stage)
        if self._plan.has_probe and stage is not Stage.PROBE:
            self._chosen = layers
