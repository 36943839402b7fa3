"""Plans with the key `privacy`."""

from __future__ import annotations

import json
from typing import Any

from protos.plan.plan import Plan
from tests.site_agent.trainer.prior.prior_federation import prior_plan

PROMISE: dict[str, Any] = {"unit": "patient", "epsilon": 1.0, "delta": 1e-5, "clip": 2.0}


def private_plan(promise: dict[str, Any] | None = None, **changes: Any) -> Plan:
    """A plan with federated-prior for four sites; `promise` changes keys of `privacy`, `changes` those of the plan."""
    plain = json.loads(prior_plan("breast-cancer").canonical)
    private = {"secure_aggregation": "required", "privacy": PROMISE | (promise or {})}
    return Plan.model_validate_json(json.dumps(plain | private | changes))
