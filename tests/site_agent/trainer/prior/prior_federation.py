"""Four hospitals with columns of one meaning, from scikit-learn's tables, and their rounds in one process."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.prior.prior_gain import CONCEPTS, plan_of_tables, split_of, uci_tables
from global_layers.one_process import Collection, run_rounds
from protos.plan.plan import Plan, plan_from_json
from protos.plan.prior_plan import PriorPlan
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.before_rounds import begin_prior
from site_agent.trainer.data.dataset import prepare_rows
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.prior.prior_study import PriorStudy
from tests.plan_changes import WITHOUT_MASKS
from tests.site_agent.trainer.sites import Table, dealt

SITES = ("ahus", "berlin", "cluj", "delft")
COLUMNS = 5
OUTCOMES: Mapping[Table, dict[str, Any]] = {
    "breast-cancer": {"task": "binary"},
    "wine": {"task": "multi-class", "classes": ["0", "1", "2"]},
    "diabetes": {"task": "regression", "low": 0.0, "high": 400.0},
}


def concepts_of(table: Table) -> list[dict[str, Any]]:
    """The table's first columns as concepts, each with the range of its values."""
    names, rows, _ = dealt(table)
    values = np.array([[float(cell) for cell in row[:COLUMNS]] for row in rows])
    return [
        {
            "kind": "number",
            "name": name.replace("_", "-").lower(),
            "definition": f"{name}.",
            "low": float(values[:, place].min()),
            "high": float(values[:, place].max()),
        }
        for place, name in enumerate(names[:COLUMNS])
    ]


def make_hospital(
    folder: Path, site: str, table: Table, *, change: Callable[[dict[str, Any]], None] | None = None
) -> Path:
    """A hospital's folder; the path of its hospital.yaml. Every fourth row is in each site's table. `change` may alter
    the contract."""
    folder.mkdir(parents=True)
    names, rows, target = dealt(table)
    kept = names[: COLUMNS + 2]
    mine = np.random.default_rng(7).permutation(len(rows))[SITES.index(site) :: len(SITES)]
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*kept, "outcome"])
        writer.writerows([*rows[row][: len(kept)], rows[row][-1]] for row in mine)
    columns: list[dict[str, Any]] = [{"name": name, "role": "feature", "type": "numeric"} for name in kept]
    for column in columns[:COLUMNS]:
        column["concept"] = column["name"].replace("_", "-").lower()
    contract = {"format": {"header": True}, "columns": [*columns, {"name": "outcome", "role": "target", **target}]}
    if change is not None:
        change(contract)
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract))
    policy = WITHOUT_MASKS | {"methods": ["federated-prior"], "smallest_sites": 4, "largest_rounds": 100}
    data = {"table": "table.csv", "contract": "contract.yaml", "split": {"seed": 3}, "unaccepted_warnings": "tell"}
    training = {"simple_models": False}
    hospital = {"site": site, "state": "state", "policy": policy, "data": data, "training": training}
    (folder / "hospital.yaml").write_text(yaml.safe_dump(hospital))
    return folder / "hospital.yaml"


def prior_plan(table: Table, *, concepts: list[dict[str, Any]] | None = None, **keys: Any) -> PriorPlan:
    """A plan with federated-prior for the four sites."""
    letters = dict(zip(SITES, "abcd", strict=True))
    content = {
        "kind": "prior",
        "study": "prior",
        "version": 1,
        "outcome": OUTCOMES[table],
        "rows_per_unknown": 1.0,
        **keys,
        "concepts": concepts_of(table) if concepts is None else concepts,
        "sites": [{"name": site, "identity": "-".join([f"aaa{letter}"] * 8)} for site, letter in letters.items()],
        "masking": {"required": False},
    }
    plan = plan_from_json(json.dumps(content))
    assert isinstance(plan, PriorPlan)
    return plan


@dataclass(frozen=True)
class Member:
    """One site in work."""

    hospital: Hospital | None
    study: PriorStudy
    preprocessing: Preprocessing


def members_of(folder: Path, plan: Plan, table: Table) -> dict[str, Member]:
    """The four sites of a plan, each in its folder."""
    found = {}
    for site in SITES:
        hospital = read_hospital(make_hospital(folder / site, site, table))
        study, preprocessing = begin_prior(hospital, plan)
        found[site] = Member(hospital, study, preprocessing)
    return found


def federate(plan: Plan, members: Mapping[str, Member]) -> Collection:
    """All rounds of a plan, through the gate's builder and the coordinator's run; every site takes in the result."""
    return run_rounds(plan, {name: member.study for name, member in members.items()})


def heart_members(rows: int = 0, seed: int = 0) -> tuple[Plan, dict[str, Member]]:
    """The four UCI heart clinics with a plan on their concepts; studies without a state folder."""
    tables = uci_tables(CONCEPTS.parent)
    plan, members = plan_of_tables(tables, 3), {}
    for name, table in tables.items():
        split = split_of(table, rows, seed)
        dataset, preprocessing = prepare_rows(table, split)
        members[name] = Member(
            None, PriorStudy(plan, dataset, table, split, site=name, secret=bytes(32), fewest=0), preprocessing
        )
    return plan, members
