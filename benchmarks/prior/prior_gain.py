"""Measures the gain from the other hospitals' score at each site, over many splits, with the deployed code.

Every integer is built by the gate and added by the coordinator's run; the sites' models are those that a deployment
saves. In each split a third of every site's rows is the test set, stratified by outcome. Training rows are drawn from
the others. Intervals are over splits, corrected for their overlap (Nadeau and Bengio 2003). Run:

    python -m benchmarks.prior.prior_gain --rows 30 50 0 --splits 20 --json figures.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import yaml
from sklearn.metrics import roc_auc_score

from benchmarks.experiments.statistics import corrected_error
from global_layers.one_process import run_rounds
from protos.numbers.newton_sums import NewtonSums
from protos.plan.plan import Plan, plan_from_json
from site_agent.desk.results.joined_model import JoinedModel
from site_agent.desk.results.joining_models import fit_own_models
from site_agent.desk.results.prior_report import joined_with
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.dataset import SplitRows, prepare_rows
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.data.tables import Table, read_table
from site_agent.trainer.prior.prior_study import KnownByOthers, PriorStudy
from site_agent.trainer.prior.site_sums import Rows, own_sums

CONCEPTS: Final = Path(__file__).parents[2] / "deploy" / "data" / "uci-heart" / "concepts.yaml"
CENTRES: Final = ("cleveland", "hungarian", "switzerland", "va")
FIGURES: Final = ("joined", "alone", "regression", "forest", "others", "others refitted")
Numbers = npt.NDArray[np.float64]


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


def measured(
    tables: Mapping[str, Table], plan: Plan, rows: int, seed: int, *, others_have_all: bool
) -> dict[str, dict[str, float]]:
    """Return for each site of one split the AUROC of each model, the others' weight, and the guard's result.

    With `others_have_all` each site in turn has few training rows, and the others have all of theirs.
    """
    if not others_have_all:
        return of_one_run(tables, plan, dict.fromkeys(tables, rows), seed, tuple(tables))
    found: dict[str, dict[str, float]] = {}
    for name in tables:
        found |= of_one_run(tables, plan, dict.fromkeys(tables, 0) | {name: rows}, seed, (name,))
    return found


def of_one_run(
    tables: Mapping[str, Table], plan: Plan, rows: Mapping[str, int], seed: int, shown: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Run all sites once. Return the results of the sites in `shown`, with `rows` training rows each (0: all rows)."""
    studies: dict[str, tuple[PriorStudy, Preprocessing]] = {}
    for name, table in tables.items():
        split = split_of(table, rows[name], seed)
        dataset, preprocessing = prepare_rows(table, split)
        studies[name] = PriorStudy(plan, dataset, table, split, site=name), preprocessing
    run_rounds(plan, {name: study for name, (study, _) in studies.items()})
    found = {}
    for name in shown:
        study, preprocessing = studies[name]
        known = study.known_by_others()
        join = joined_with(study, known, preprocessing, fit_own_models(study.own, seed))
        scores = _scores(study, known, join.model) | {"alone": said_by(study, known, join.alone)}
        if known.guard is not None:  # a private plan has no Newton rounds that could be continued
            refitted = _refitted(known, [other for site, (other, _) in studies.items() if site != name])
            scores["others refitted"] = known.design(study.part("test"), len(study.own.test)) @ refitted
        labels = study.own.test.targets
        figures = {model: float(roc_auc_score(labels, values)) for model, values in scores.items()}
        best = "regression" if join.losses[0] <= join.losses[1] else "forest"
        found[name] = figures | {
            "best own": figures[best], "weight": float(join.model.weights[2]), "guard": known.guard,
            "rounds": float(known.rounds), "rows": float(len(study.own.training)),
        }  # fmt: skip
    return found


def said_by(study: PriorStudy, known: KnownByOthers, model: JoinedModel) -> Numbers:
    """Return a model's outputs for the study's test rows."""
    test = study.own.test.features
    return model.outputs(test, known.design(study.part("test"), len(test)).astype(np.float32))[:, 0]


def _scores(study: PriorStudy, known: KnownByOthers, model: JoinedModel) -> dict[str, Numbers]:
    """Return the scores of the joined model, and of each of its three models alone."""
    found = {"joined": said_by(study, known, model)}
    for place, name in enumerate(("regression", "forest", "others")):
        only = JoinedModel(
            task=model.task, own=model.own, forest=model.forest, others=model.others, weights=np.eye(3)[place]
        )
        found[name] = said_by(study, known, only)
    return found


def _refitted(known: KnownByOthers, others: Sequence[PriorStudy]) -> Numbers:
    """Return the coefficients of the other sites alone, fitted until convergence with the same standardisation."""
    coefficients = known.others
    ridge = others[0].prior.ridge
    for _ in range(25):
        sums = [
            own_sums(
                Rows(design=known.standard.applied(other._values), targets=other._outcomes),
                coefficients,
            )
            for other in others
        ]  # fmt: skip
        total = NewtonSums(
            hessian=np.asarray(sum(one.hessian for one in sums)), gradient=np.asarray(sum(one.gradient for one in sums))
        )
        coefficients = total.next_coefficients(coefficients, ridge)
    return coefficients[0]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[30, 50, 0], help="training rows a site, 0 for all")
    parser.add_argument("--others-have-all", action="store_true", help="only one site at a time has so few rows")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--fewest-sites", type=int, default=3)
    parser.add_argument("--data", type=Path, default=CONCEPTS.parent)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    tables, figures = uci_tables(asked.data), {}
    plan = plan_of_tables(tables, asked.fewest_sites)
    for rows in asked.rows:
        seeds = range(asked.first_seed, asked.first_seed + asked.splits)
        all_others = asked.others_have_all
        splits = [measured(tables, plan, rows, seed, others_have_all=all_others) for seed in seeds]
        figures[str(rows)] = splits
        print(f"{rows or 'all'} training rows a site", *_lines(splits), sep="\n", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1))


def _lines(splits: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    lines = []
    for site in (*CENTRES, "mean"):
        sites = CENTRES if site == "mean" else (site,)

        def mean(key: str, less: str | None = None, sites: Sequence[str] = sites) -> list[float]:
            return [float(np.mean([one[s][key] - (one[s][less] if less else 0.0) for s in sites])) for one in splits]

        parts = [f"{key} {100 * np.mean(mean(key)):.1f}" for key in FIGURES]
        for less in ("alone", "best own"):
            value, error = corrected_error(mean("joined", less), 1 / 3)
            parts.append(f"minus {less} {100 * value:+.1f} ({100 * error:.1f})")
        gap = np.mean(np.abs(mean("others", "others refitted")))
        parts += [f"one step off {100 * gap:.2f}", f"weight {np.mean(mean('weight')):.2f}"]
        parts.append(f"guard {np.mean(mean('guard')):.0f}, rounds {np.mean(mean('rounds')):.1f}")
        lines.append(f"  {site:12} " + "; ".join(parts))
    return lines


if __name__ == "__main__":
    main()
