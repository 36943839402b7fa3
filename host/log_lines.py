"""Writes log lines to standard error: JSON under a service manager, readable text on a terminal.

The lines are for the operator. Evidence of what crosses the boundary is in the audit log.
"""

from __future__ import annotations

import sys
from typing import Any

# structlog loads rich, if it is installed, to draw tracebacks. These programs print none, and rich would cost each
# process 4 MiB and a tenth of a second.
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # Python's own way to refuse an import
    import structlog

    del sys.modules["rich"]
else:
    import structlog


def set_up_log(program: str | None = None) -> None:
    """Configure the log. If the program's name is given, each line gets it."""

    def name(_: Any, __: str, event: Any) -> Any:
        return event if program is None else {"program": program} | event

    is_terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            name,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
