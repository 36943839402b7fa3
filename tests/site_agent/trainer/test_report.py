"""What a site keeps of a study: a model, a report, and nothing half done."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from protos.errors import ConfigurationError, OperatorError, UsageError
from site_agent.trainer import saved_model
from site_agent.trainer.report import conclude
from site_agent.trainer.saved_model import is_run_name, latest_run, load_model
from site_agent.trainer.study import Study
from tests.site_agent.trainer.sites import make_plan, make_site, make_study, run_rounds


def test_report_and_model_hold_what_was_reached(tmp_path: Path) -> None:
    """The file says what was returned; the model is the chosen one, with plan and preprocessing."""
    plan = make_plan()
    hospital, study = make_study(make_site(tmp_path), plan)

    facts = conclude(hospital, study, "law-1", run_rounds(plan, [study]))

    path = hospital.state_path / "reports" / "law-1.json"
    model = load_model(hospital.state_path, "law-1")
    assert json.loads(path.read_text()) == facts
    assert facts.keys() >= {"federated", "siloed", "rows", "columns", "plan_digest", "task"}
    assert model.plan == plan
    assert model.preprocessing == study.preprocessing
    assert model.columns == study.own.columns
    assert model.values.keys() == study._flat.values().keys()


def test_only_the_owner_reads_them(tmp_path: Path) -> None:
    """Mode 0600, in folders of mode 0700."""
    plan = make_plan()
    hospital, study = make_study(make_site(tmp_path), plan)

    conclude(hospital, study, "law-1", run_rounds(plan, [study]))

    for path in (
        hospital.state_path / "reports" / "law-1.json",
        hospital.state_path / "models/law-1/model.safetensors",
    ):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_baseline_can_be_switched_off(tmp_path: Path) -> None:
    """Then nothing is trained alone and the report has no such part."""
    plan = make_plan()
    hospital, study = make_study(make_site(tmp_path, siloed_baseline=False), plan)

    facts = conclude(hospital, study, "law-1", run_rounds(plan, [study]))

    assert "siloed" not in facts


def test_a_baseline_that_diverges_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics keep their names, so that tables keep their columns."""
    plan = make_plan()
    hospital, study = make_study(make_site(tmp_path), plan)
    monkeypatch.setattr(Study, "train_alone", lambda self: None)

    facts = conclude(hospital, study, "law-1", run_rounds(plan, [study]))

    federated, siloed = facts["federated"], facts["siloed"]
    assert isinstance(federated, dict)
    assert siloed == {"metrics": dict.fromkeys(federated["metrics"])}


def test_an_interrupted_comparison_loses_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chosen model is on disk before the site trains alone."""
    plan = make_plan()
    hospital, study = make_study(make_site(tmp_path), plan)

    def interrupted(self: Study) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "train_alone", interrupted)
    with pytest.raises(KeyboardInterrupt):
        conclude(hospital, study, "law-1", run_rounds(plan, [study]))

    assert latest_run(hospital.state_path) == "law-1"
    assert all(np.isfinite(array).all() for array in load_model(hospital.state_path, "law-1").values.values())


def test_without_a_model_the_operator_is_told(tmp_path: Path) -> None:
    """What to do first, or which name to give."""
    with pytest.raises(OperatorError, match="no trained model yet"):
        latest_run(tmp_path)
    with pytest.raises(ConfigurationError, match="No such file"):
        load_model(tmp_path, "law-1")


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../a", "a\nb", "-a", "a" * 201])
def test_a_runs_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    """It comes from the coordinator, or from a command line."""
    assert not is_run_name(name)
    with pytest.raises(UsageError):
        load_model(tmp_path, name)


def test_a_model_without_its_plan_is_of_another_version(tmp_path: Path) -> None:
    """A checkpoint that is whole and still not what this program saves."""
    saved_model.save(tmp_path / "models" / "law-1", "model", {}, {"plan": "{}"})

    with pytest.raises(ConfigurationError, match="another version"):
        load_model(tmp_path, "law-1")
