"""Plans with the key `privacy`."""

from __future__ import annotations

import json
from typing import Any

from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import plan_from_json
from protos.plan.prior_plan import PriorPlan
from tests.plan_changes import changed
from tests.site_agent.trainer.prior.prior_federation import prior_plan

PROMISE: dict[str, Any] = {"unit": "patient", "epsilon": 1.0, "delta": 1e-5, "clip": 2.0}


def private_plan(promise: dict[str, Any] | None = None, **changes: Any) -> PriorPlan:
    """A plan with federated-prior for four sites; `promise` changes keys of `privacy`, `changes` those of the plan."""
    plain = json.loads(prior_plan("breast-cancer").canonical)
    private = {"masking": {"required": True}, "privacy": PROMISE | (promise or {})}
    plan = plan_from_json(json.dumps(changed(changed(plain, private), changes)))
    assert isinstance(plan, PriorPlan)
    return plan


def private_network_plan(
    promise: dict[str, Any] | None = None, *, rounds: int = 10, hidden: tuple[int, ...] = (), **changes: Any
) -> NetworkPlan:
    """A plan that trains a network privately at four sites, on the concepts of `private_plan`."""
    of_prior = json.loads(prior_plan("breast-cancer").canonical)
    content: dict[str, Any] = {key: of_prior[key] for key in ("study", "version", "concepts", "sites")} | {
        "kind": "network",
        "method": {"name": "fedavg"},
        "architecture": {"name": "dense", "hidden": hidden},
        "outputs": 1,
        "schedule": {"aggregate": "every-batch", "epochs": rounds, "batches_per_epoch": 1},
        "optimiser": {"name": "sgd", "learning_rate": 1.0},
        "weighting": {"name": "equal"},
        "start": {"name": "equal", "seed": 3},
        "checkpoint": "latest",
        "privacy": PROMISE | {"patients": 300} | (promise or {}),
    }
    plan = plan_from_json(json.dumps(changed(content, changes)))
    assert isinstance(plan, NetworkPlan)
    return plan


def local_plan(
    promise: dict[str, Any] | None = None, *, rounds: int = 5, steps: int = 3, **changes: Any
) -> NetworkPlan:
    """A private network whose sites add the whole noise in each of several steps of a round."""
    schedule = {"aggregate": "every-round", "epochs": rounds * steps, "batches_per_epoch": 1, "epochs_per_round": steps}
    return private_network_plan({"noise": "local"} | (promise or {}), schedule=schedule, **changes)
