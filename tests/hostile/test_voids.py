"""A run in which a site's own rows do not allow an answer, through the real engine, gates, ledgers and masks."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.commands.serve import _ended_well
from protos.errors import OperatorError
from protos.wire.messages import SiteReason
from site_agent.trainer_socket import Message, Train, Trained
from tests.federation import Federation, MadeUpTrainer, masked_plan, played, recorded


class Voiding(MadeUpTrainer):
    """A trainer whose rows do not allow an answer from a round on."""

    first = 1

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """Answer as a trainer does."""
        answer = await super().ask(message, largest_payload)
        if isinstance(message, Train) and message.round >= self.first:
            return Trained(message.round, 0, b"", int(SiteReason.DATA_UNFIT))
        return answer


@pytest.mark.parametrize("weighting", [{"name": "equal"}, {"name": "rows", "largest_rows": 128}])
def test_a_void_ends_the_run_for_all_alike(tmp_path: Path, weighting: dict[str, object]) -> None:
    """The coordinator and the other sites learn that the run is void. Only one site knows its reason."""
    plan = masked_plan("abcd", rounds=4, weighting=weighting)

    async def scene(network: Federation) -> None:
        for name in "abc":
            network.add(name)
        network.add("d", trainer=Voiding("d"))
        await network.finish()
        (over,) = network.engine.outcomes
        assert (over.is_void, over.is_complete, over.missing) == (True, False, frozenset())
        with pytest.raises(OperatorError) as told:
            _ended_well(network.engine)
        assert "site-trainer" in told.value.remedy  # the audit log has only the kind of a reason
        sites = list(network.sites.values())
        assert [(site.error, site.is_running) for site in sites] == [(None, False)] * 4
        assert len({tuple(one["event"] for one in site.records()) for site in sites}) == 1
        reasons = [one["own_reason"] for site in sites for one in site.records("run_voided")]
        assert reasons == ["none", "none", "none", "data_unfit"]

    played(tmp_path, plan, scene)
    record = recorded(tmp_path)
    assert (record["is_void"], record["is_complete"], record["rounds_made"]) == (True, False, 1)
