"""Only one program uses a state directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pki.store import hold_directory
from protos.errors import ConfigurationError


def test_a_directory_is_held_by_one_until_it_ends(tmp_path: Path) -> None:
    """A second program is refused while the first one runs, and taken when it has gone."""
    first = hold_directory(tmp_path, "site agent")

    with pytest.raises(ConfigurationError, match="already runs"):
        hold_directory(tmp_path, "site agent")

    os.close(first)
    os.close(hold_directory(tmp_path, "site agent"))
