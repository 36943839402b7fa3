"""Reads a plan: everything on which the sites agree before a run, as a frozen record of one of three kinds.

A network plan trains a network, a statistics plan has analyses, and a prior plan fits a regression on concepts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from protos.errors import ConfigurationError, ProtocolError
from protos.plan.documents import parse_document, read_document
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan_head import LARGEST_PLAN_BYTES
from protos.plan.prior_plan import PriorPlan
from protos.plan.statistics_plan import StatisticsPlan

Plan: TypeAlias = NetworkPlan | StatisticsPlan | PriorPlan

_PLANS: Final[TypeAdapter[Plan]] = TypeAdapter(Annotated[Plan, Field(discriminator="kind")])


def plan_from_json(raw: str | bytes) -> Plan:
    """Return the plan of this JSON document. Raises pydantic.ValidationError: it is no plan, or an impossible one."""
    return _PLANS.validate_json(raw)


def plan_from_yaml(raw: bytes, *, source: str, consequence: str, has_lines: bool = True) -> Plan:
    """Return the plan of this YAML document. Raises ConfigurationError, with every mistake."""
    return parse_document(raw, _PLANS, source=source, consequence=consequence, has_lines=has_lines)


def read_plan(path: Path, *, consequence: str) -> Plan:
    """Read the YAML file of a plan. Raises ConfigurationError: the file cannot be read, or is wrong."""
    return read_document(path, _PLANS, consequence=consequence)


def plan_from_wire(raw: bytes) -> Plan:
    """Return the plan that a coordinator announced. Only canonical bytes are a plan: a hospital approves their digest.

    Raises ProtocolError: the bytes are too many, no plan, or not the plan's canonical form.
    """
    try:
        if len(raw) > LARGEST_PLAN_BYTES:
            raise ValueError("too large")
        plan = plan_from_json(raw)
        if plan.canonical != raw or _has_negative_zero(raw):  # -0.0 is read as 0.0, with another digest
            raise ValueError("not canonical")
    except (ConfigurationError, ValidationError, ValueError) as cause:
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
