"""Log lines on standard error: JSON under a service manager, readable text on a terminal.

For the operator, not for evidence: what crosses the boundary is in the audit log.
"""

from __future__ import annotations

import sys
from typing import Any, TextIO, cast

import structlog

from host.command_line import Following
from host.message_catalogue import identify
from site_agent.site_events import EVENTS


def set_up_log(program: str) -> None:
    """Add the program's name to every later line. Call it once, first."""

    def name(_: Any, __: str, event: Any) -> Any:
        return {"program": program} | event

    is_terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            name,
            identify(EVENTS),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, Following()) if is_terminal else sys.stderr),
        cache_logger_on_first_use=True,
    )
