"""A site without outcomes computes the others' score from the announced sums, or nothing."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import yaml

from protos.errors import ConfigurationError, DataError
from protos.plan.plan import Plan, plan_from_json
from protos.plan.prior_sums import place_sums
from protos.wire.messages import MalformedMessage
from site_agent.desk.results.receiving import receive
from site_agent.desk.results.saved_model import load_model
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.prior.prior_study import read_without_outcomes, require_receivable
from tests.site_agent.trainer.prior.prior_federation import Member, federate, make_hospital, members_of, prior_plan
from tests.site_agent.trainer.sites import Table

_TABLES: tuple[Table, ...] = ("breast-cancer", "wine", "diabetes")


@cache
def _federated(table: Table) -> tuple[Plan, dict[str, Member], int, Any]:
    """A run of the four contributors: the plan, the members, the rounds and the result."""
    content = json.loads(prior_plan(table).model_dump_json())
    content["sites"].append({"name": "essen", "identity": "-".join(["aaae"] * 8), "tier": "receiving"})
    plan = plan_from_json(json.dumps(content))
    members = members_of(Path(mkdtemp()), plan, table)
    finish, values = federate(plan, members).run.result()
    return plan, members, finish.round, np.array(values)


def _receiver(folder: Path, table: Table, **data: Any) -> Hospital:
    """The fifth hospital: a table like Ahus's, without the outcome."""
    path = make_hospital(folder / "ahus", "ahus", table)
    with (path.parent / "table.csv").open() as file:
        rows = [row[:-1] for row in csv.reader(file)]
    with (path.parent / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    content = yaml.safe_load(path.read_text())
    content["site"], content["policy"]["tier"] = "essen", "receiving"
    content["data"] |= data
    path.write_text(yaml.safe_dump(content))
    return read_hospital(path)


@pytest.mark.parametrize("table", _TABLES)
def test_the_received_model_is_the_score_of_all_contributors(tmp_path: Path, table: Table) -> None:
    """Its slopes are the joint coefficients; its mean prediction is the contributors' share or mean."""
    plan, members, rounds, values = _federated(table)
    hospital = _receiver(tmp_path, table)
    known = members["ahus"].study.known_by_others()

    receive(hospital, plan, plan.run_name, rounds, values)

    model = load_model(hospital.state_path, plan.run_name)
    assert model.joined is not None
    assert model.joined.weights.tolist() == [0.0, 0.0, 1.0]
    np.testing.assert_allclose(model.joined.others.slopes, known.joint, rtol=1e-12)
    read = read_without_outcomes(hospital)
    encoded = model.encode(read)
    own = len(model.preprocessing.columns)
    said = model.joined.outputs(encoded[:, :own], encoded[:, own:])
    if table == "breast-cancer":
        assert (1.0 / (1.0 + np.exp(-said))).mean() == pytest.approx(known.standard.outcome_means[0], abs=1e-6)
    elif table == "diabetes":
        assert said.mean() == pytest.approx(0.0, abs=1e-9)
        assert model.preprocessing.target_scale is not None
        assert model.preprocessing.target_scale.mean == pytest.approx(400.0 * known.standard.outcome_means[0])
    report = json.loads((hospital.state_path / "reports" / f"{plan.run_name}.json").read_text())
    assert report["receiving"]["has_model"]
    assert "This site's patients had no influence on the model" in report["receiving"]["sentence"]


def test_a_declared_prevalence_sets_the_mean_prediction(tmp_path: Path) -> None:
    """With `prevalence: 0.12` in hospital.yaml the mean predicted probability is 12%."""
    plan, _, rounds, values = _federated("breast-cancer")
    hospital = _receiver(tmp_path, "breast-cancer", prevalence=0.12)

    receive(hospital, plan, plan.run_name, rounds, values)

    model = load_model(hospital.state_path, plan.run_name)
    assert model.joined is not None
    encoded, own = model.encode(read_without_outcomes(hospital)), len(model.preprocessing.columns)
    said = model.joined.outputs(encoded[:, :own], encoded[:, own:])
    assert (1.0 / (1.0 + np.exp(-said))).mean() == pytest.approx(0.12, abs=1e-6)


def test_without_any_use_for_the_others_there_is_no_model(tmp_path: Path) -> None:
    """If the guard is not positive, the report has the reason and there is nothing to adopt."""
    plan, _, rounds, values = _federated("breast-cancer")
    prior, changed = plan, values.copy()
    assert prior is not None
    place_sums(changed, prior.place(rounds - 1, rounds - 2), [-1])
    hospital = _receiver(tmp_path, "breast-cancer")

    receive(hospital, plan, plan.run_name, rounds, changed)

    report = json.loads((hospital.state_path / "reports" / f"{plan.run_name}.json").read_text())
    assert not report["receiving"]["has_model"]
    assert report["receiving"]["sentence"].startswith("No model was saved")
    assert not (hospital.state_path / "models" / plan.run_name).exists()


@pytest.mark.parametrize("wrong", ["rounds", "sums"])
def test_sums_that_no_honest_sites_sent_give_no_model(tmp_path: Path, wrong: str) -> None:
    """A result after another number of rounds, or with an impossible Hessian, is refused before anything is saved."""
    plan, _, rounds, values = _federated("breast-cancer")
    prior, changed = plan, values.copy()
    assert prior is not None
    if wrong == "sums":
        place = prior.place(1, rounds - 2)
        place_sums(changed, place, [-(1 << 50)] * (place.stop - place.start))
    hospital = _receiver(tmp_path, "breast-cancer")

    with pytest.raises(MalformedMessage):
        receive(hospital, plan, plan.run_name, 1 if wrong == "rounds" else rounds, changed)

    assert not (hospital.state_path / "models" / plan.run_name).exists()


def test_a_contract_without_any_concept_cannot_receive(tmp_path: Path) -> None:
    """It is refused before the run, in words that name the key."""
    plan, _, _, _ = _federated("breast-cancer")
    hospital = _receiver(tmp_path, "breast-cancer")
    contract = yaml.safe_load(Path(hospital.data.contract).read_text())
    for column in contract["columns"]:
        column.pop("concept", None)
    Path(hospital.data.contract).write_text(yaml.safe_dump(contract))

    with pytest.raises(ConfigurationError, match="No column of this site's contract records a concept"):
        require_receivable(hospital, plan)


def test_a_receivers_table_has_to_fit_its_contract(tmp_path: Path) -> None:
    """A cell that is no number is an error, although no row of it takes part."""
    hospital = _receiver(tmp_path, "breast-cancer")
    path = Path(hospital.data.table)
    lines = path.read_text().splitlines()
    lines[3] = "tall" + lines[3][lines[3].index(",") :]
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(DataError):
        read_without_outcomes(hospital)
