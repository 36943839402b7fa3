"""Runs the rounds of global-layers: sums the sites' contributions and applies the server rule."""

from host.own_packages import require_own_packages

require_own_packages()

import host.log_lines  # noqa: E402, F401  # before structlog, which would load rich
