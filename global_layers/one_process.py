"""Runs a federation in one process. The gate's code builds each contribution, and the coordinator's code adds them.

There is no socket, no mask and no second process. Every integer is the same as over the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np
import numpy.typing as npt

from coordinator.rounds.phases import Gathering
from coordinator.rounds.run import Run, new_run, terms_of
from protos.plan.exchange import stage_at
from protos.plan.plan import Plan
from protos.wire.messages import Finish, Offer, Stage
from site_agent.gate.door import Builder, Noise
from site_agent.gate.privacy_ledger import with_noise
from site_agent.trainer.prior.prior_study import PriorStudy
from site_agent.trainer.requests import Asked
from site_agent.trainer.statistics.statistics_study import StatisticsStudy
from site_agent.trainer.study import Study


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One site's numbers for a round: updates as its trainer sends them, and scalars without the row count."""

    updates: npt.NDArray[np.generic]
    scalars: Sequence[int]
    rows: int


class Collection:
    """Runs the rounds of one plan: builds, adds and closes the contributions of all sites."""

    def __init__(self, plan: Plan) -> None:
        """Start the run. Nothing is masked, because masks cancel in every sum."""
        self.plan = plan
        self.run: Run = new_run(plan, terms_of(plan), Gathering())
        self._builder = Builder(plan, trains=True, smallest_rows=1)
        self.noise: Noise = partial(with_noise, plan)  # a plan with privacy uses it
        self._own_sums: dict[str, tuple[int, ...]] = {}  # of private layers, by site, as the site's gate stores them

    def begin(self, round_number: int) -> None:
        """Start a round, in which no site's contribution is added yet."""
        self.run.begin_sum(round_number, self.plan.site_names)

    def add(self, site: str, round_number: int, part: Part) -> None:
        """Encode a site's numbers in the same way as its gate, and add the encoded chunks to the sums."""
        offered = self.run.offered(round_number)
        payload = part.updates.tobytes() + np.array(part.scalars, "<i8").tobytes()
        here, noise = offered.offer.parameters_digest, None if self.plan.privacy is None else partial(self._noisy, site)
        contribution = self._builder.build(here, offered.exchange, memoryview(payload), rows=part.rows, noise=noise)
        for index in range(offered.exchange.layout.chunks):
            self.run.running_sum.add(site, index, offered.exchange.layout.body(contribution.buffer, index))

    def make(self, round_number: int, studies: Mapping[str, Study | PriorStudy | StatisticsStudy]) -> None:
        """Run a whole round: train at every site, and add each site's numbers to the sums."""
        offered = self.run.offered(round_number)
        self.begin(round_number)
        for name, study in studies.items():
            answer = study.train(self.asked_of(name, offered.offer), np.array(offered.values))
            rows = study.rows if offered.offer.stage is Stage.TRAINING else 0
            part = Part(updates=answer.updates, scalars=answer.scalars, rows=rows)
            self.add(name, round_number, part)
        self.close(round_number)

    def asked_of(self, site: str, message: Offer | Finish) -> Asked:
        """Return the request to a site, with the sums of its private layers that the gate stored."""
        return replace(asked_by(message), own_sums=self._own_sums.get(site, ()))

    def _noisy(self, site: str, numbers: list[int]) -> list[int]:
        noisy, own = self.noise(numbers), self.plan.own_numbers
        if own:
            before = self._own_sums.get(site, (0,) * own)
            self._own_sums[site] = tuple(one + more for one, more in zip(before, noisy[-own:], strict=True))
        return noisy

    def close(self, round_number: int) -> None:
        """Apply the server rule to the complete sum, and make the decisions about the next round."""
        if not self.run.is_consistent:
            raise ArithmeticError(f"round {round_number + 1} does not add up")
        self.run.close_round(round_number)


def run_rounds(plan: Plan, studies: Mapping[str, Study | PriorStudy | StatisticsStudy]) -> Collection:
    """Run all rounds of a plan. Every site loads the result.

    Args:
        plan: lists exactly these sites; without masking.
        studies: each site's own.

    Raises:
        OperatorError: the plan does not fit a site.
    """
    collection = Collection(plan)
    run = collection.run
    for number in count():
        if stage_at(plan, number, run.course.training_rounds) is None:
            break
        collection.make(number, studies)
    finish, values = run.result()
    for name, study in studies.items():
        study.close(collection.asked_of(name, finish), np.array(values))
    return collection


def asked_by(message: Offer | Finish) -> Asked:
    """Convert an offer, or the last message of a run, to a request to the site's trainer."""
    return Asked(
        round=message.round,
        stage=message.stage if isinstance(message, Offer) else None,
        layers=message.layers,
        best_round=message.best_round,
        scales=message.scales if isinstance(message, Offer) else b"",
    )
