"""What a person at a terminal sees of a running agent."""

from __future__ import annotations

import asyncio
import io

from rich.console import Console

from protos.wire.messages import Bind
from site_agent.agent_progress import drawn_on, shown
from site_agent.gate.site_standing import Standing


def in_round(number: int) -> Standing:
    """An agent that sends its contribution of a round of ten."""
    standing = Standing()
    standing.began_run("heart-v1", 10)
    standing.saw(Bind(number, 0, ("a", "b", "c"), 0, 0))
    return standing


def test_a_round_is_shown_as_people_count() -> None:
    """Round 3, counted from 0, is the fourth of ten; without a run nothing is counted."""
    assert shown(in_round(3)) == ("heart-v1: sending", 4, 10)
    assert shown(Standing()) == ("no run: starting", 0, 1)


def drawn(*, is_terminal: bool) -> str:
    """What is drawn in the first moment."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=100)

    async def look() -> None:
        drawn_on(console)(in_round(3))
        await asyncio.sleep(0)

    asyncio.run(look())
    return out.getvalue()


def test_only_a_terminal_is_drawn_on() -> None:
    """On a terminal there is a bar with run, phase and round; under a service manager there is nothing."""
    assert "heart-v1: sending" in drawn(is_terminal=True)
    assert "4/10" in drawn(is_terminal=True)
    assert drawn(is_terminal=False) == ""
