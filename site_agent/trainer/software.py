"""The versions of the programs that a model rests on."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Final

PACKAGES: Final = ("global-layers", "torch", "scikit-learn", "numpy", "safetensors")


def versions() -> dict[str, str]:
    """By name, of what is installed now; Python's among them."""
    return {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
