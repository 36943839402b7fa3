"""The last result of a sweep, as sites receive it: the alternative with the lowest loss over all sites."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from coordinator.storage.run_record import sweep_facts
from protos.plan.manifest import LOSS_SCALE
from protos.wire.messages import CoordinatorMessage, Finish, Offer, SiteMessage
from tests.coordinator.in_memory import IDENTITIES, Stage
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import BehavingSite, plan_with

RATES = (1.0, 0.5, 0.25)


class MeasuringSite(BehavingSite):
    """Its validation loss follows from the learning rate alone; it keeps every result that it receives."""

    def __init__(self, name: str, losses: Mapping[float, float]) -> None:
        super().__init__(name, scalars=self._measured)
        self._losses, self.results = losses, list[Finish]()

    def answer(self, message: CoordinatorMessage) -> list[SiteMessage]:
        """As any site."""
        if isinstance(message, Finish):
            self.results.append(message)
        return super().answer(message)

    def _measured(self, _: Offer) -> dict[str, int]:
        loss = self._losses[self.plan.optimiser.learning_rate]
        return {"validation weight": 1, "validation loss": int(loss * LOSS_SCALE)}


@pytest.mark.parametrize("best", range(3))
@pytest.mark.parametrize("restarts", [False, True])
def test_the_last_result_names_the_alternative_with_the_lowest_loss(tmp_path: Path, best: int, restarts: bool) -> None:
    """No earlier result names one, a coordinator that starts again names the same, and its status agrees."""
    sweep = {"keys": ["optimiser.learning_rate"], "alternatives": [[rate] for rate in RATES]}
    plan = plan_with(IDENTITIES, changes={"checkpoint": "global", "sweep": sweep})
    losses = {rate: 1.0 + abs(number - best) for number, rate in enumerate(RATES)}
    sites = [MeasuringSite(name, losses) for name in IDENTITIES]

    async def scene() -> None:
        for plans in (plan.alternatives[:2], plan.alternatives) if restarts else (plan.alternatives,):
            stage = Stage(tmp_path, *plans)
            stage.engine.start()
            for site in sites:
                stage.connect(site)
            stage.deliver()
            assert stage.engine.finished.is_set()
            stage.engine.stop()

    play(scene())

    for site in sites:
        assert [result.alternative for result in site.results] == [None, None, best]
    (facts,) = sweep_facts(tmp_path, plan.alternatives)
    assert facts["chosen"] == plan.alternatives[best].run_name
