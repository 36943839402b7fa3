"""A command of site-agent as a person types it, in this process."""

from __future__ import annotations

import sys

import pytest

from site_agent.site_cli import main
from site_agent.trainer import isolation


def typed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, *words: object
) -> tuple[int, str]:
    """Run `site-agent COMMAND WORDS`. Return the exit status, and the text on screen and in the log in one line. The
    process of the test keeps its network, which it has threads for."""
    monkeypatch.setattr(isolation, "_threads", lambda: 1)
    monkeypatch.setattr(isolation, "_unshare", lambda _: True)
    monkeypatch.setattr(sys, "argv", ["site-agent", command, *map(str, words)])
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    written = capfd.readouterr()
    assert isinstance(ended.value.code, int | None)
    return ended.value.code or 0, " ".join((written.out + written.err).split())
