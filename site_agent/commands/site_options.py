"""Defines the options that many commands of `site-agent` have."""

from __future__ import annotations

from pathlib import Path

import click

config_option = click.option(
    "--config", "path", required=True, type=click.Path(path_type=Path), help="The file hospital.yaml."
)
plan_option = click.option(
    "--plan",
    "plan_path",
    type=click.Path(path_type=Path),
    help="File of the plan. Without this option, use the plan that was announced last.",
)
