"""Sites for the tests of the trainer: real tables that come with scikit-learn, small networks."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import yaml
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from protos.plan.methods import METHOD_NAMES
from protos.plan.plan import Plan, plan_from_json
from site_agent.approving import approve
from site_agent.desk.comparison.evaluation import measure, scores_of, targets_of
from site_agent.desk.results.run_report import make_report
from site_agent.hospital import Hospital, Split, read_hospital
from site_agent.trainer.before_rounds import begin_study
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.dataset import Dataset, prepare_rows, split_rows
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.data.tables import read_table
from site_agent.trainer.requests import Asked
from site_agent.trainer.study import Outcome, Study
from site_agent.trainer.training.flat_network import Vector
from tests.plan_changes import WITHOUT_MASKS, changed

LOOSE_POLICY: Final = WITHOUT_MASKS | {
    "methods": list(METHOD_NAMES), "smallest_sites": 1, "largest_rounds": 1000, "largest_megabytes": 1000.0,
}  # fmt: skip

SMALL: Final = {
    "name": "global-layers-network", "latent": 8, "gate": False, "input_normalisation": False, "entity_width": 4,
    "heads": 2, "transformer_blocks": 1,
}  # fmt: skip
RUN: Final = "law-1"
NAMES: Final = ("ahus", "berlin", "cluj")
Table = Literal["breast-cancer", "wine", "diabetes"]


@cache
def dealt(table: Table) -> tuple[list[str], list[list[str]], dict[str, object]]:
    """Names, rows with the target as last cell, the target's declaration; made once, so nobody may change them."""
    if table == "breast-cancer":
        bunch = load_breast_cancer()
        target: dict[str, object] = {"task": "binary", "positive": [0], "negative": [1]}
    elif table == "wine":
        bunch = load_wine()
        target = {"task": "multi-class", "codes": [0, 1, 2]}
    else:
        bunch = load_diabetes(scaled=False)
        target = {"task": "regression", "unit": "points"}
    names = [str(name).replace(" ", "_").replace("/", "_") for name in bunch.feature_names]
    rows = [[*map(repr, map(float, row)), f"{label:g}"] for row, label in zip(bunch.data, bunch.target, strict=True)]
    return names, rows, target


def make_site(
    folder: Path,
    site: str = "ahus",
    *,
    table: Table = "breast-cancer",
    columns: slice = slice(0, 6),
    **training: object,
) -> Path:
    """A hospital's folder; the path of its hospital.yaml. Every third patient is in each site's table."""
    folder.mkdir(parents=True, exist_ok=True)
    names, rows, target = dealt(table)
    kept = names[columns]
    mine = np.random.default_rng(7).permutation(len(rows))[NAMES.index(site) :: 3]
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["who", *kept, "outcome"])
        writer.writerows([f"P{row:04d}", *rows[row][:-1][columns], rows[row][-1]] for row in mine)
    contract = {
        "format": {"header": True},
        "columns": [
            {"name": "who", "role": "patient"},
            *({"name": name, "role": "feature", "type": "numeric"} for name in kept),
            {"name": "outcome", "role": "target", **target},
        ],
    }
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract))
    hospital = {
        "site": site,
        "state": "state",
        "policy": LOOSE_POLICY,
        "data": {
            "table": "table.csv",
            "contract": "contract.yaml",
            "split": {"seed": 3},
            "unaccepted_warnings": "tell",
        },
        "training": {"simple_models": False, "draws": "published"} | training,  # 500 trees take a second
    }
    (folder / "hospital.yaml").write_text(yaml.safe_dump(hospital))
    return folder / "hospital.yaml"


def make_plan(**changes: Any) -> Any:  # a plan, of the kind that the changes name
    """A plan of three sites with a small network; any key may be changed."""
    content: dict[str, object] = {
        "kind": "network",
        "study": "law",
        "version": 1,
        "method": {"name": "global-layers"},
        "architecture": SMALL,
        "schedule": {"aggregate": "every-epoch", "epochs": 3, "batches_per_epoch": 4},
        "optimiser": {"name": "adamw", "learning_rate": 0.003},
        "weighting": {"name": "equal"},
        "start": {"name": "equal", "seed": 11},
        "sites": [
            {"name": name, "identity": "-".join(["aaa" + letter] * 8)}
            for name, letter in zip(NAMES, "abc", strict=True)
        ],
        "masking": {"required": False},
    }
    return plan_from_json(json.dumps(changed(content, changes)))


def prepared(path: Path, contract: Contract, split: Split) -> tuple[Dataset, Preprocessing]:
    """A hospital's table after it was read, split and encoded."""
    table = read_table(path, contract)
    return prepare_rows(table, split_rows(table, split))


def prepare(config: Path, plan: Plan) -> tuple[Hospital, Study, Preprocessing]:
    """What a trainer holds after it was asked to prepare."""
    hospital = read_hospital(config)
    return hospital, *begin_study(hospital, plan, hospital.state_path)


def make_study(config: Path, plan: Plan) -> Study:
    """The study of `prepare` alone."""
    return prepare(config, plan)[1]


def approve_plan(config: Path, plan: Plan) -> None:
    """A person at the site approves."""
    approve(read_hospital(config).state_path, plan, by="A. Jones", at=datetime(2026, 1, 1, tzinfo=UTC))


def values_of(study: Study) -> dict[str, npt.NDArray[np.generic]]:
    """Every tensor of the network whose update is handed out."""
    return study._training.flat.values()


def numbers_of(study: Study) -> bytes:
    """The same as bytes."""
    return b"".join(array.tobytes() for array in values_of(study).values())


def first_values(plan: Plan, study: Study) -> Vector:
    """Return the values that the coordinator sends for round 0."""
    return study.manifest.initial_parameters(plan.seed)


def update_of(study: Study, number: int, shared: Vector) -> Vector:
    """Return the data that the trainer sends in a training round of a method without scalars."""
    answer = study.train(Asked(round=number), shared)
    assert answer.scalars == ()
    return answer.updates


def run_rounds(plan: Plan, studies: list[Study]) -> Vector:
    """All rounds of a federation in this process, with equal weights; the last aggregate."""
    shared = first_values(plan, studies[0])
    for number in range(plan.schedule.rounds):
        updates = [update_of(study, number, shared).astype(np.float64) for study in studies]
        shared = (shared + np.mean(updates, axis=0)).astype(np.float32)
    return shared


def at_the_end(plan: Plan, best_round: int | None = None) -> Asked:
    """What comes with the last aggregate."""
    return Asked(round=plan.rounds, stage=None, best_round=best_round)


def conclude(study: Study, last: Vector) -> Outcome:
    """The last aggregate is taken in, the model chosen."""
    study.close(at_the_end(study.plan), last)
    return study.conclude()


def metrics_of(study: Study, preprocessing: Preprocessing, outcome: Outcome) -> Mapping[str, float | None]:
    """Return the result of the chosen model on the test rows."""
    targets = targets_of(preprocessing, study.dataset.test.targets)
    scores = scores_of(preprocessing, outcome.test_outputs)
    return measure(study.dataset.task, targets, scores, study.dataset.classes)


def fingerprint(outcome: Outcome) -> str:
    """A digest over a chosen model, its evidence and its predictions: equal bits, equal digests."""
    digest = hashlib.sha256(json.dumps(outcome.choice, sort_keys=True).encode())
    for name, array in sorted(outcome.values.items()):
        digest.update(name.encode() + array.tobytes())
    digest.update(outcome.validation_outputs.tobytes() + outcome.test_outputs.tobytes())
    return digest.hexdigest()


def site_after_run(
    folder: Path, *, table: Table = "breast-cancer", columns: slice = slice(0, 6), plan: Any = None, **training: object
) -> Hospital:
    """A hospital with model, report and scores of a federation with itself alone."""
    made = plan or make_plan()
    hospital, study, preprocessing = prepare(make_site(folder, table=table, columns=columns, **training), made)
    study.close(at_the_end(made), run_rounds(made, [study]))
    make_report(hospital, study, preprocessing, RUN)
    return hospital
