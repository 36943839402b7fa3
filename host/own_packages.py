"""Stops a program with a clear error if another project's package has replaced a package of global-layers.

The installed packages are named `protos`, `pki` and so on, without a common prefix. Another wheel can have a package
with the same name. Imports would then fail with a traceback, or run foreign code. Each program calls this module before
it imports anything else, so it imports only Python's own modules.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("protos", "pki")
_MARK: Final = "global-layers"  # in the first line of each package's __init__.py
_WRONG_CONFIGURATION: Final = 78


def require_own_packages(names: Sequence[str] = PACKAGES) -> None:
    """End the process with status 78 if one of these packages belongs to another project."""
    home = Path(__file__).resolve().parents[1]
    for name in names:
        found = _place(name)
        if found != home / name / "__init__.py" or _MARK not in found.read_text().partition("\n")[0]:
            print(
                f"global-layers: the Python package {name} in {found or 'no folder'} belongs to another project.\n"
                f"  Nothing was started and nothing was sent.\n"
                f"  Install global-layers into a virtual environment of its own, without that other project.",
                file=sys.stderr,
            )
            raise SystemExit(_WRONG_CONFIGURATION)


def _place(name: str) -> Path | None:
    spec = find_spec(name)
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None
