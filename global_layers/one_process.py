"""Runs a federation in one process. The gate's code builds each contribution, and the coordinator's code adds them.

There is no socket, no mask and no second process. Every integer is the same as over the network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from coordinator.rounds.phases import Gathering
from coordinator.rounds.run import Run, new_run, terms_of
from global_layers.frames import CORRECT
from protos.plan.exchange import stage_at
from protos.plan.plan import Plan, plan_from_yaml
from protos.wire.messages import Finish, Offer, Stage
from site_agent.gate.door import Builder, Noise
from site_agent.gate.privacy_ledger import with_noise
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.prior.prior_study import PriorStudy
from site_agent.trainer.requests import Asked
from site_agent.trainer.statistics.statistics_study import StatisticsStudy
from site_agent.trainer.study import Study

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"
AnyStudy: TypeAlias = Study | PriorStudy | StatisticsStudy


class Collection:
    """Runs the rounds of one plan: builds, adds and closes the contributions of all sites."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.run: Run = new_run(plan, terms_of(plan), Gathering())
        self._builder = Builder(plan, trains=True, smallest_rows=1)
        self.noise: Noise = partial(with_noise, plan)  # a plan with privacy uses it
        self._own_sums: dict[str, tuple[int, ...]] = {}  # of private layers, by site, as the site's gate stores them

    def make(self, round_number: int, studies: Mapping[str, AnyStudy]) -> None:
        """Run a whole round: train at every site, encode each site's numbers as its gate does, and add them up."""
        offered = self.run.offered(round_number)
        self.run.begin_sum(round_number, self.plan.site_names)
        for site, study in studies.items():
            answer = study.train(self.asked_of(site, offered.offer), np.array(offered.values))
            rows = study.rows if offered.offer.stage is Stage.TRAINING else 0
            payload = answer.updates.tobytes() + np.array(answer.scalars, "<i8").tobytes()
            noise = None if self.plan.privacy is None else partial(self._noisy, site)
            digest = offered.offer.parameters_digest
            contribution = self._builder.build(digest, offered.exchange, memoryview(payload), rows=rows, noise=noise)
            for index in range(offered.exchange.layout.chunks):
                self.run.running_sum.add(site, index, offered.exchange.layout.body(contribution.buffer, index))
        if not self.run.is_consistent:
            raise ArithmeticError(f"round {round_number + 1} does not add up")
        self.run.close_round(round_number)

    def asked_of(self, site: str, message: Offer | Finish) -> Asked:
        """Return the request to a site, with the sums of its private layers that the gate stored."""
        return replace(asked_by(message), own_sums=self._own_sums.get(site, ()))

    def _noisy(self, site: str, numbers: list[int]) -> list[int]:
        noisy, own = self.noise(numbers), self.plan.own_numbers
        if own:
            before = self._own_sums.get(site, (0,) * own)
            self._own_sums[site] = tuple(one + more for one, more in zip(before, noisy[-own:], strict=True))
        return noisy


def run_rounds(plan: Plan, studies: Mapping[str, AnyStudy]) -> Collection:
    """Run all rounds of a plan of just these sites, which load the result. Raise OperatorError if one is unfit."""
    collection = Collection(plan)
    while stage_at(plan, collection.run.rounds_made, collection.run.course.training_rounds) is not None:
        collection.make(collection.run.rounds_made, studies)
    finish, values = collection.run.result()
    for name, study in studies.items():
        study.close(collection.asked_of(name, finish), np.array(values))
    return collection


def asked_by(message: Offer | Finish) -> Asked:
    """Convert an offer, or the last message of a run, to a request to the site's trainer."""
    stage, scales = (message.stage, message.scales) if isinstance(message, Offer) else (None, b"")
    return Asked(round=message.round, stage=stage, layers=message.layers, best_round=message.best_round, scales=scales)


def plan_among(members: Mapping[str, object], keys: Mapping[Any, Any], /, **more: Any) -> Plan:
    """Return a plan with these keys among sites with made-up identities. Raises ConfigurationError: it is no plan."""
    sites = [
        {"name": name, "identity": "-".join([f"aa{_LETTERS[place // 32]}{_LETTERS[place % 32]}"] * 8)}
        for place, name in enumerate(members)
    ]
    content = {"study": "simulation", "version": 1, "sites": sites, "masking": {"required": False}, **keys, **more}
    try:  # a value that neither Python's JSON nor numpy knows becomes a record that no plan has
        raw = json.dumps(content, default=lambda one: getattr(one, "tolist", lambda: {str(type(one)): []})())
    except (TypeError, ValueError, RecursionError) as cause:
        refuse([f"the plan has a key or a value that no file can have: {cause}"], CORRECT)
    return plan_from_yaml(raw.encode(), source="The plan", consequence="Nothing was computed.", has_lines=False)
