"""A plan's document with other keys, as a person would change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest

from protos.plan import plan_head
from protos.plan.plan_head import PlanHead

POLICY: Final[dict[str, Any]] = {  # an ordinary hospital's
    "methods": ["fedavg"],
    "secure_aggregation": "required",
    "smallest_sites": 3,
    "largest_rounds": 10,
    "largest_megabytes": 100.0,
    "largest_clipping_range": 8.0,
}
WITHOUT_MASKS: Final[dict[str, Any]] = POLICY | {"secure_aggregation": "not-required"}
_NAMES: Final = ("name", "aggregate")  # a record with such a key replaces the whole record


def changed(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Replace keys. Some keys of a record change only these; another kind keeps only what all kinds have."""
    is_other = changes.get("kind", document["kind"]) != document["kind"]
    kept = {key: value for key, value in document.items() if not is_other or key in PlanHead.model_fields}
    return kept | {key: _merged(kept.get(key), value) for key, value in changes.items()}


def _merged(before: Any, after: Any) -> Any:
    is_part = isinstance(before, dict) and isinstance(after, dict) and not any(name in after for name in _NAMES)
    return before | after if is_part else after


@contextmanager
def few_sites_are_enough() -> Iterator[None]:
    """Plans of one or two sites are made here, because their sums can be computed by hand. A real plan needs three."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_head, "FEWEST_SITES", 1)
        yield
