"""Options that many commands of `coordinator` share."""

from __future__ import annotations

from pathlib import Path

import click

config_option = click.option(
    "--config", "path", required=True, type=click.Path(path_type=Path), help="The file coordinator.yaml."
)
