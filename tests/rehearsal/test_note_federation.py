"""A federation on notes that are read in word order, at three hospitals with made-up notes.

Contracts, readers, networks, training, gates, masks and the engine are those of production, in one process and in
made-up time. Only the sockets between the processes are missing.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from global_layers.one_process import run_rounds
from protos.errors import ConfigurationError
from protos.plan.plan import Plan
from site_agent.hospital import Split, read_hospital
from site_agent.trainer.data.contract import Contract, read_contract
from site_agent.trainer.data.dataset import Dataset, prepare_rows, split_rows
from site_agent.trainer.data.run_table import table_for_run
from site_agent.trainer.data.tables import read_table
from site_agent.trainer.fitting import check_fit
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study
from tests.federation import Federation, identity_of
from tests.hostile.real_trainers import RealTrainer
from tests.laws.masked_runs import decisions, unmasked
from tests.rehearsal.made_up_time import play
from tests.site_agent.trainer.sites import NAMES, fingerprint, make_plan, put_hospital

SIZE = {"buckets": 64, "longest": 8}
NOTE = {"name": "note", "role": "feature", "type": "text", **SIZE}
TARGET = {"name": "ill", "role": "target", "task": "binary", "positive": [1], "negative": [0]}
TOKENS = {"name": "feature-tokens", "width": 16, "heads": 2, "blocks": 1, "hidden": 16, "note": SIZE}
TOKENS |= {"attention_dropout": 0.0, "feedforward_dropout": 0.0}
AGE = {"name": "age", "role": "feature", "type": "numeric"}
WARD = {"name": "ward", "role": "feature", "type": "categorical", "codes": ["1", "2"], "encoding": "one-hot"}
COUNTED, IGNORED = NOTE | {"longest": None}, {"role": "ignore"}
BESIDE = {"columns": ["age", "ward=1", "ward=2", "ward=unknown"]}
Columns = list[dict[str, Any]]
OTHER_WORDS = ("patient", "reports", "again", "today", "mild", "without", "since", "monday")
ROWS = 400


def note(generator: np.random.Generator, is_ill: bool) -> str:
    """Fever before rash, or rash before fever, with the same other words around them."""
    words = [*generator.choice(OTHER_WORDS, int(generator.integers(1, 6)), replace=False)]
    places = sorted(generator.choice(len(words) + 1, 2))
    first, then = ("Fever", "rash") if is_ill else ("Rash", "fever")
    words.insert(places[1], then)
    words.insert(places[0], first)
    return " ".join(words)


def contract_of(others: Columns | None = None, note: dict[str, Any] = NOTE) -> Contract:
    """The note, other columns and the outcome."""
    columns = [note, *(others or []), TARGET]
    return Contract.model_validate_json(json.dumps({"format": {"header": True}, "columns": columns}))


def put_site(folder: Path, site: str, rows: int = ROWS, others: Columns | None = None) -> Path:
    """A hospital's hospital.yaml beside its table and contract. With an age, old patients' notes are the reverse."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(NAMES.index(site))
    names = [column["name"] for column in others or []]
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["note", *names, "ill"])
        for row in range(rows):
            ward, is_old = (int(generator.integers(2)) if name in names else 0 for name in ("ward", "age"))
            cells = {"age": 30 + 40 * is_old + row % 20, "ward": 1 + ward}
            writer.writerow([note(generator, row % 2 != is_old), *(cells[name] for name in names), row % 2])
    return put_hospital(folder, site, [NOTE, *(others or []), TARGET])


def plan_for(epochs: int, **changes: Any) -> Plan:
    """FedAvg over all three hospitals."""
    own = {"method": {"name": "fedavg"}, "architecture": TOKENS, "outputs": 1, "checkpoint": "latest"} | changes
    return make_plan(
        schedule={"aggregate": "every-epoch", "epochs": epochs, "batches_per_epoch": 8},
        optimiser={"name": "adamw", "learning_rate": 0.01},
        sites=[{"name": name, "identity": identity_of(name)} for name in NAMES],
        **own,
    )


async def trained(folder: Path, plan: Plan, others: dict[str, Columns]) -> tuple[Federation, dict[str, Study]]:
    """A run of a plan to its end; each site has these columns beside its note."""
    network, trainers = Federation(folder, plan), dict[str, RealTrainer]()
    for site in NAMES:
        trainers[site] = RealTrainer(site, put_site(folder / "files" / site, site, 60, others.get(site)))
        network.add(site, trainer=trainers[site], secure_aggregation="not-required")
    await network.finish()
    assert {name: site.error for name, site in network.sites.items() if site.error is not None} == {}
    await network.close()
    return network, {name: one.study for name, one in trainers.items() if one.study is not None}


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({}, {}),
        (BESIDE, {site: [AGE, WARD] for site in NAMES}),
        ({"method": {"name": "global-layers"}, "outputs": None}, {"ahus": [AGE, WARD], "berlin": [WARD]}),
    ],
    ids=["alone", "beside columns", "beside each hospital's own columns"],
)
def test_words_in_order_are_trained_on_and_masks_change_no_bit(
    tmp_path: Path, changes: dict[str, Any], others: dict[str, Columns]
) -> None:
    """Equal parameters and equal models at three hospitals, masked and unmasked."""
    plan = plan_for(1, secure_aggregation="required", **changes)

    async def scene() -> None:
        masked, with_masks = await trained(tmp_path / "masked", plan, others)
        plain, without = await trained(tmp_path / "plain", unmasked(plan), others)

        released = [site.records("contribution_released") for site in masked.sites.values()]
        assert all(records and all(record["masked"] for record in records) for records in released)
        assert masked.vector().tobytes() == plain.vector().tobytes()
        assert decisions(masked) == decisions(plain)
        assert len(with_masks) == len(NAMES)
        assert {name: fingerprint(one.conclude()) for name, one in with_masks.items()} == {
            name: fingerprint(one.conclude()) for name, one in without.items()
        }

    play(scene())


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        (
            TOKENS | {"note": SIZE | {"longest": 9}},
            "reads a note of 9 words in 64 buckets. This site has a note of 8 words",
        ),
        (
            TOKENS | {"note": SIZE | {"buckets": 65}},
            "a note of 8 words in 65 buckets. This site has a note of 8 words in",
        ),
        (
            {"name": "dense", "hidden": [4]},
            "network dense reads no note in word order. This site has a note of 8 words",
        ),
    ],
)
def test_a_plan_for_another_note_is_refused(tmp_path: Path, architecture: dict[str, Any], words: str) -> None:
    """Both sizes are in the error; a network of columns does not read places as if they were numbers."""
    hospital = read_hospital(put_site(tmp_path / "ahus", "ahus", 60))
    columns = list(read_contract(tmp_path / "ahus" / "contract.yaml").encoded_columns)
    listed = {"columns": columns} if architecture["name"] == "dense" else {}

    with pytest.raises(ConfigurationError, match=words):
        check_fit(
            plan_for(1, architecture=architecture, **listed), prepare_rows(*table_for_run(hospital, None))[0], "ahus"
        )


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ([], "These columns of this site are not in the plan's list of columns: age"),
        (["age", "weight", "note at place 2 of 8"], "lists note at place 2 of 8. This column belongs to the note"),
    ],
)
def test_a_plan_lists_exactly_the_columns_beside_the_note(tmp_path: Path, listed: list[str], words: str) -> None:
    """A column that the plan does not list has no token at the others, and the note's own are not listed."""
    hospital = read_hospital(put_site(tmp_path / "ahus", "ahus", 60, [AGE]))
    dataset = prepare_rows(*table_for_run(hospital, None))[0]
    check_fit(plan_for(1, columns=["weight", "age"]), dataset, "ahus")
    check_fit(plan_for(1, unused_columns=["age"]), dataset, "ahus")

    with pytest.raises(ConfigurationError, match=words):
        check_fit(plan_for(1, columns=listed), dataset, "ahus")


def test_a_network_of_a_hospitals_own_may_read_places(tmp_path: Path) -> None:
    """It receives the same columns, and what it makes of them is not in the plan."""
    hospital = read_hospital(put_site(tmp_path / "ahus", "ahus", 60))
    own = {"name": "named-tensors", "tensors": [{"name": "last.weight", "shape": [1, 4], "bound": 0.1}]}
    dataset = prepare_rows(*table_for_run(hospital, None))[0]

    check_fit(plan_for(1, architecture=own, outputs=None), dataset, "ahus")

    places = np.rint(dataset.training.features[:, -8:] * np.float32(64))
    assert set(np.unique(places)) <= set(range(65))
    assert ((places > 0).sum(axis=1) > 1).all()


def test_a_plan_for_a_note_is_refused_by_a_table_without_word_order(tmp_path: Path) -> None:
    """Words that are only counted have no order."""
    put_site(tmp_path / "ahus", "ahus", 60)
    table = read_table(tmp_path / "ahus" / "table.csv", contract_of(note=COUNTED))
    dataset = prepare_rows(table, split_rows(table, Split(seed=0)))[0]

    with pytest.raises(ConfigurationError, match="This site has none in word order"):
        check_fit(plan_for(1), dataset, "ahus")


def auroc(plan: Plan, datasets: dict[str, Dataset]) -> float:
    """Of the test rows of all hospitals together."""
    studies = {name: Study(plan, own, seeds=Seeds.published(0, name)) for name, own in datasets.items()}
    run_rounds(plan, studies)
    outputs = np.concatenate([study.conclude().test_outputs[:, 0] for study in studies.values()])
    return float(roc_auc_score(np.concatenate([one.dataset.test.targets for one in studies.values()]), outputs))


def test_word_order_is_learned_that_no_count_of_words_shows(tmp_path: Path) -> None:
    """Ill patients have the fever first. In order the words decide; the same words counted are worth nothing."""
    found, columns = {}, contract_of(note=COUNTED).encoded_columns
    counted = {"architecture": {"name": "dense", "hidden": [16]}, "columns": list(columns)}
    for longest, plan in ((8, plan_for(30)), (None, plan_for(30, **counted))):
        datasets = {}
        for site in NAMES:
            folder = tmp_path / f"{longest}" / site
            put_site(folder, site)
            table = read_table(folder / "table.csv", contract_of(note=NOTE | {"longest": longest}))
            datasets[site] = prepare_rows(table, split_rows(table, Split(seed=0, stratified=True)))[0]
        found[longest] = auroc(plan, datasets)

    assert found[8] > 0.95, found
    assert found[None] < 0.65, found


@pytest.mark.slow
def test_words_and_columns_are_learned_together_that_neither_shows_alone(tmp_path: Path) -> None:
    """Ill young patients have the fever first, ill old ones the rash. Only order and age together decide."""
    found = {}
    age = {"architecture": {"name": "dense", "hidden": [16]}, "columns": ["age"]}
    kinds: dict[str, tuple[Contract, Plan]] = {
        "both": (contract_of([AGE]), plan_for(30, columns=["age"])),
        "note": (contract_of([IGNORED | {"name": "age"}]), plan_for(30)),
        "age": (contract_of([AGE], IGNORED | {"name": "note"}), plan_for(30, **age)),
    }
    for kind, (contract, plan) in kinds.items():
        datasets = {}
        for site in NAMES:
            folder = tmp_path / kind / site
            put_site(folder, site, others=[AGE])
            table = read_table(folder / "table.csv", contract)
            datasets[site] = prepare_rows(table, split_rows(table, Split(seed=0, stratified=True)))[0]
        found[kind] = auroc(plan, datasets)

    assert found["both"] > 0.95, found
    assert max(found["note"], found["age"]) < 0.65, found
