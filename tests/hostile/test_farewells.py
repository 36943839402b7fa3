"""A site receives the coordinator's last message, even if it was working when the stream ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from protos.errors import RefusedError
from protos.wire.messages import Announcement, CoordinatorReason, Farewell
from site_agent.trainer_socket import Message, Prepare
from tests.federation import Line, MadeUpTrainer, Site, masked_plan, settle
from tests.rehearsal.made_up_time import play


class SlowToPrepare(MadeUpTrainer):
    """A trainer that reads a long table."""

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """As a trainer, but later."""
        if isinstance(message, Prepare):
            await asyncio.sleep(60.0)
        return await super().ask(message, largest_payload)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (CoordinatorReason.ALL_RUNS_OVER, "has ended without this site"),
        (CoordinatorReason.RUN_STOPPED, "one site does not agree"),
    ],
)
def test_a_site_at_work_hears_the_end_and_does_not_call_again(
    tmp_path: Path, reason: CoordinatorReason, said: str
) -> None:
    """A farewell that arrived while the trainer prepared counts, although the stream had already ended.

    The site has no result of the run, so it does not end as if all were well.
    """
    plan = masked_plan("abc")
    opened: list[Line] = []

    async def scene() -> None:
        site = Site("a", plan, tmp_path, trainer=SlowToPrepare("a"), opened=lambda _, line: opened.append(line))
        await settle()
        await site.tell(Announcement(plan.run_name, _raw(plan)))
        await site.tell(Farewell(reason, "one site does not agree"))
        assert site.line is not None
        site.line.cut()

        await asyncio.sleep(300.0)

        assert len(opened) == 1
        assert isinstance(site.error, RefusedError)
        assert said in site.error.what
        await site.stop()

    play(scene())


def _raw(plan: Any) -> bytes:
    return bytes(plan.canonical)
