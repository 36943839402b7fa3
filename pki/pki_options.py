"""Options that many commands of `pki` share."""

from __future__ import annotations

from pathlib import Path

import click

PATH = click.Path(path_type=Path)
directory_option = click.option(
    "--directory", type=PATH, required=True, help="The authority's directory, made by `pki init`."
)
