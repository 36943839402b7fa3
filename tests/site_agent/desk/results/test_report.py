"""The files of a study at a site: a model, a report, and no incomplete file."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from site_agent.desk.comparison.evaluation import held_out_rows, scores_of
from site_agent.desk.results import run_report
from site_agent.desk.results.run_report import make_report
from site_agent.desk.results.saved_model import latest_run, load_model
from site_agent.hospital import Hospital
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.study import Study
from tests.site_agent.trainer.sites import at_the_end, make_plan, make_site, prepare, run_rounds


def trained(folder: Path, **site: object) -> tuple[Hospital, Study, Preprocessing]:
    """A site at the end of a federation with itself alone."""
    plan = make_plan()
    hospital, study, preprocessing = prepare(make_site(folder, **site), plan)  # type: ignore[arg-type]
    study.close(at_the_end(plan), run_rounds(plan, [study]))
    return hospital, study, preprocessing


def test_report_and_model_hold_what_was_reached(tmp_path: Path) -> None:
    """The file says what was returned; the model is the chosen one, with plan and preprocessing."""
    hospital, study, preprocessing = trained(tmp_path)

    made = make_report(hospital, study, preprocessing, "law-1")

    model = load_model(hospital.state_path, "law-1")
    written = json.loads((hospital.state_path / "reports" / "law-1.json").read_text())
    assert abs(datetime.now(UTC) - datetime.fromisoformat(written.pop("date"))) < timedelta(hours=1)
    assert written == json.loads(json.dumps(made))
    assert made.keys() >= {"federated", "siloed", "rows", "columns", "plan_digest", "task", "gain", "differences"}
    assert model.plan == study.plan
    assert model.preprocessing == preprocessing
    assert model.columns == study.own.columns
    assert model.values.keys() == study.conclude().values.keys()


def test_every_network_has_metrics_intervals_calibration_and_the_evidence_of_its_choice(tmp_path: Path) -> None:
    """The metrics are those of its scores on the test rows, and lie in their intervals."""
    hospital, study, preprocessing = trained(tmp_path)

    facts = make_report(hospital, study, preprocessing, "law-1")

    federated, siloed, differences = facts["federated"], facts["siloed"], facts["differences"]
    assert isinstance(federated, dict)
    assert isinstance(siloed, dict)
    assert isinstance(differences, dict)
    outcome, rows = study.conclude(), held_out_rows(study.own, preprocessing)
    assert federated["metrics"] == rows.evaluate(scores_of(preprocessing, outcome.test_outputs))
    assert federated["checkpoint"] == outcome.choice
    for one in (federated, siloed):
        assert one.keys() == {"metrics", "intervals", "calibration", "checkpoint"}
        assert one["intervals"]["brier"][0] <= one["metrics"]["brier"] <= one["intervals"]["brier"][1]
        assert one["calibration"].keys() == {"predicted", "observed", "intercept", "slope"}
    assert differences.keys() == {"siloed"}
    for metric, difference in differences["siloed"].items():
        assert difference["difference"] == federated["metrics"][metric] - siloed["metrics"][metric]


def test_a_baseline_that_diverges_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics keep their names, so that tables keep their columns."""
    monkeypatch.setattr(run_report, "train_alone", lambda study: None)

    facts = make_report(*trained(tmp_path), "law-1")

    federated, gain = facts["federated"], facts["gain"]
    assert isinstance(federated, dict)
    assert isinstance(gain, dict)
    assert facts["siloed"] == {"metrics": dict.fromkeys(federated["metrics"])}
    assert (
        gain["sentence"]
        == "The federated model was not compared with a local model: the network trained alone diverged."
    )


def test_an_interrupted_comparison_loses_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chosen model is on disk before the site trains alone."""
    hospital, study, preprocessing = trained(tmp_path)

    def interrupted(study: Study) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_report, "train_alone", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_report(hospital, study, preprocessing, "law-1")

    assert latest_run(hospital.state_path) == "law-1"
    assert all(np.isfinite(array).all() for array in load_model(hospital.state_path, "law-1").values.values())
