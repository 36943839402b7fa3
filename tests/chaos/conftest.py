"""The quickstart makes the federation of a rehearsal; nothing of it is written twice."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "deploy"))
