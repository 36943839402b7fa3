"""Reads the plan that a coordinator announces.

Only canonical bytes are accepted, because the hospital approved their digest.
"""

from __future__ import annotations

import json

from pydantic import ValidationError

from protos.errors import ProtocolError
from protos.plan.plan import LARGEST_PLAN_BYTES, Plan


def plan_from_wire(raw: bytes) -> Plan:
    """Return the plan that a coordinator announced.

    Raises:
        ProtocolError: the bytes are too many, no plan, or not the plan's canonical form.
    """
    try:
        if len(raw) > LARGEST_PLAN_BYTES:
            raise ValueError("too large")
        plan = Plan.model_validate_json(raw)
        if plan.canonical != raw or _has_negative_zero(raw):  # -0.0 is read as 0.0, with another digest
            raise ValueError("not canonical")
    except (ValidationError, ValueError) as cause:
        raise ProtocolError(
            what="The coordinator announced a plan that this version cannot read.",
            consequence="Nothing was sent.",
            remedy="Ask the federation office which version of global-layers the study needs.",
        ) from cause
    return plan


def _has_negative_zero(raw: bytes) -> bool:
    found: list[str] = []
    json.loads(raw, parse_float=found.append, parse_int=found.append)
    return any(number.startswith("-") and float(number) == 0.0 for number in found)
