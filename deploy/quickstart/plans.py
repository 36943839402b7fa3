"""A plan for each method of the catalogue, with a network that suits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quickstart.hospitals import HospitalData

# Methods whose input layers stay private; all others read columns that the plan lists.
_OWN_COLUMNS = {"global-layers", "lg-fedavg", "local"}
# Methods whose output layers stay private.
_OWN_OUTPUTS = {"global-layers", "fedper", "fedrep", "fedbabu", "fenda-fl", "perfcl", "local"}
_EXTRACTORS = {"fenda-fl", "perfcl"}


def plan_of(method: str, hospitals: Sequence[HospitalData], *, latent: int) -> dict[str, Any]:  # Any: YAML
    """What a researcher writes for a method and these hospitals; sites, schedule, seed and masking are left out.

    Hospitals with different columns are aligned by name. CHFL shares the first half of each hospital's
    columns and leaves it the rest.
    """
    plan: dict[str, Any] = {
        "study": f"quickstart-{method}",
        "version": 1,
        "method": {"name": method},
        "architecture": _network(method, latent),
        "optimiser": {"name": "adamw", "learning_rate": 0.001, "weight_decay": 0.0001},
        "weighting": {"name": "rows", "largest_rows": 1024} if method == "fedavg" else {"name": "equal"},
        "checkpoint": "local",
    }
    if method == "scaffold":
        plan["optimiser"] = {"name": "sgd", "learning_rate": 0.01}
    if method not in _OWN_COLUMNS:
        plan["columns"] = _columns(hospitals, share=0.5 if method == "chfl" else 1.0)
    if method not in _OWN_OUTPUTS:
        plan["outputs"] = 1
    return plan


def _network(method: str, latent: int) -> dict[str, Any]:
    if method in _EXTRACTORS:
        return {"name": "parallel", "common": [latent], "unique": [latent]}
    if method == "chfl":
        return {"name": "columns", "hidden": [4 * latent, 2 * latent, latent], "lateral": 0.5}
    return {"name": "global-layers-network", "latent": latent, "gate": False, "input_normalisation": False}


def _columns(hospitals: Sequence[HospitalData], share: float) -> list[str]:
    """The encoded columns of all hospitals once, of each the first so many."""
    from site_agent.trainer.data.contract import read_contract

    columns: dict[str, None] = {}
    for hospital in hospitals:
        own = read_contract(hospital.contract).encoded_columns
        columns |= dict.fromkeys(own[: max(1, round(share * len(own)))])
    return list(columns)
