"""Makes the plans of experiments, as a researcher would write them, with made-up identities and without masking.

Masks cancel in every sum, so they change no bit of a result. In an experiment they would only cost time. Papers compare
with one or two clients, which no real plan may have, because a site could compute another's numbers from the sum.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final
from unittest.mock import patch

from protos.plan import plan_head
from protos.plan.plan import plan_from_json

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"


def experiment_plan(
    sites: Iterable[str], seed: int, *, start: str = "equal", **keys: Any
) -> Any:  # Any: keys of a plan, checked by it; the plan
    """Return a plan of these sites with the keys that a researcher writes, by default a network plan.

    Raises:
        pydantic.ValidationError: a key is wrong, or the keys do not fit one another.
    """
    names = list(sites)
    listed = [
        {"name": name, "identity": "-".join([f"aa{_LETTERS[number // 32]}{_LETTERS[number % 32]}"] * 8)}
        for number, name in enumerate(names)
    ]
    content: dict[str, Any] = {"study": "experiment", "version": 1, "sites": listed, "masking": {"required": False}}
    if "kind" not in keys:
        content |= {"kind": "network", "start": {"name": start, "seed": seed}}
    with patch.object(plan_head, "FEWEST_SITES", 1):
        return plan_from_json(json.dumps(content | keys))
