"""Measures the gain from the other hospitals' score at each site, over many splits, with the deployed code.

Every integer is built by the gate and added by the coordinator's run; the sites' models are those that a deployment
saves, and the same without the others' score. In each split a third of every site's rows is the test set, stratified by
outcome. Training rows are drawn from the others. Errors are over splits, corrected for their overlap (Nadeau and Bengio
2003). Run:

    python -m benchmarks.prior.prior_gain --rows 30 50 0 --splits 20
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import yaml
from sklearn.metrics import roc_auc_score

from benchmarks.experiments.statistics import corrected_error
from global_layers.one_process import run_rounds
from protos.plan.plan import Plan, plan_from_json
from site_agent.desk.results.joining_models import fit_own_models
from site_agent.desk.results.prior_report import joined_with
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.dataset import SplitRows, prepare_rows
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.data.tables import Table, read_table
from site_agent.trainer.prior.prior_study import PriorStudy

CONCEPTS: Final = Path(__file__).parents[2] / "deploy" / "data" / "uci-heart" / "concepts.yaml"
CENTRES: Final = ("cleveland", "hungarian", "switzerland", "va")


def uci_tables(folder: Path) -> dict[str, Table]:
    """Return the tables of the four heart clinics, read with the contracts of the quickstart. They are read once."""
    return {name: _uci_table(folder, name) for name in CENTRES}


@cache
def _uci_table(folder: Path, name: str) -> Table:
    return read_table(folder / f"{name}.data", read_contract(folder / f"{name}.yaml"))


def plan_of_tables(tables: Mapping[str, Table], fewest: int) -> Plan:
    """Return a plan with every concept that enough of the tables record."""
    known = {name: {feature.concept for feature in table.contract.features} for name, table in tables.items()}
    concepts = []
    for concept in yaml.safe_load(CONCEPTS.read_text())["concepts"]:
        sites = sorted(name for name in tables if concept["name"] in known[name])
        if len(sites) >= fewest:
            concepts.append(concept | {"recorded_by": sites})
    content = {
        "study": "measured",
        "version": 1,
        "kind": "prior",
        "fewest_sites": fewest,
        "rows_per_unknown": 1.0,
        "concepts": concepts,
        "sites": [{"name": name, "identity": "-".join([f"aaa{name[0]}"] * 8)} for name in tables],
        "masking": {"required": False},
    }
    return plan_from_json(json.dumps(content))


def split_of(table: Table, rows: int, seed: int) -> SplitRows:
    """Split a table. One third of each class is for testing.

    `rows` of the others are the training set, stratified; all if `rows` is 0 or too large.
    """
    generator = np.random.default_rng(seed)
    assert table.target is not None
    test, rest = [], []
    for value in np.unique(table.target):
        mine = generator.permutation(np.flatnonzero(table.target == value))
        cut = max(1, round(len(mine) / 3))
        test.append(mine[:cut])
        rest.append(mine[cut:])
    total = sum(map(len, rest))
    share = 1.0 if not rows else min(1.0, rows / total)
    training = [part[: max(2, round(share * len(part)))] for part in rest]
    return SplitRows(
        training=generator.permutation(np.concatenate(training)),
        validation=np.concatenate(test)[:1],  # not read
        test=np.concatenate(test),
    )


def gains(tables: Mapping[str, Table], plan: Plan, rows: int, seed: int) -> dict[str, float]:
    """Return for each site of one split the AUROC of the joined model minus that of the model without the others."""
    studies: dict[str, tuple[PriorStudy, Preprocessing]] = {}
    for name, table in tables.items():
        split = split_of(table, rows, seed)
        dataset, preprocessing = prepare_rows(table, split)
        studies[name] = PriorStudy(plan, dataset, table, split, site=name, secret=bytes(32), fewest=0), preprocessing
    run_rounds(plan, {name: study for name, (study, _) in studies.items()})
    found = {}
    for name, (study, preprocessing) in studies.items():
        known, test = study.known_by_others(), study.own.test
        join = joined_with(study, known, preprocessing, fit_own_models(study.own, seed))
        design = known.design(study.part("test"), len(test)).astype(np.float32)
        joined, alone = (
            float(roc_auc_score(test.targets, model.outputs(test.features, design)[:, 0]))
            for model in (join.model, join.alone)
        )
        found[name] = joined - alone
    return found


def main() -> None:
    """Print the mean gain of each site, and of all sites, with its standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[30, 50, 0], help="training rows a site, 0 for all")
    parser.add_argument("--splits", type=int, default=20)
    asked = parser.parse_args()
    tables = uci_tables(CONCEPTS.parent)
    plan = plan_of_tables(tables, 3)
    for rows in asked.rows:
        splits = [gains(tables, plan, rows, seed) for seed in range(asked.splits)]
        print(f"{rows or 'all'} training rows a site")
        for site in (*CENTRES, "mean"):
            values = [float(np.mean(list(one.values()))) if site == "mean" else one[site] for one in splits]
            value, error = corrected_error(values, 1 / 3)
            print(f"  {site:12} {100 * value:+.1f} ({100 * error:.1f})", flush=True)


if __name__ == "__main__":
    main()
