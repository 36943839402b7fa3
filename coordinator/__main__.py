"""Starts the program `coordinator`, also as `python -m coordinator`."""

from __future__ import annotations

import host.log_lines  # noqa: F401  # before structlog, which would load rich
from coordinator.commands.coordinator_cli import main

if __name__ == "__main__":
    main()
