"""An export as a hospital gets it: a folder whose loader answers as `predict` does, an expert included."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

import pytest

from protos.errors import UsageError
from site_agent.trainer import experts
from site_agent.trainer.export.folder import LARGEST_DIFFERENCE, export_model
from site_agent.trainer.prediction import predict_table
from tests.site_agent.trainer.after_a_run import site_after_run
from tests.site_agent.trainer.sites import SMALL, Table, make_plan


@pytest.mark.parametrize("table", ["breast-cancer", "wine"])
def test_the_folder_answers_as_predictions_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
    """With an expert, for rows as text, abstentions included; ONNX agrees, and nothing is written over."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(experts, "TREES", 20)
    plan = make_plan(architecture=SMALL | {"linear_path": True}, expert={})
    hospital = site_after_run(tmp_path / "site", table=table, plan=plan, siloed_baseline=False)
    own = Path(hospital.data.table)

    made = export_model(hospital, tmp_path / "exported", None, has_onnx=True)
    predict_table(hospital, own, tmp_path / "out.csv", None)

    loaded = runpy.run_path(str(tmp_path / "exported" / "loader.py"))["load"](tmp_path / "exported")
    answers = loaded.predict(list(csv.DictReader(own.read_text().splitlines())))
    lines = list(csv.reader((tmp_path / "out.csv").read_text().splitlines()))[1:]
    assert made.onnx_difference is not None
    assert max(made.loader_difference, made.onnx_difference) <= LARGEST_DIFFERENCE
    for answer, line in zip(answers, lines, strict=True):
        assert (answer is None) == bool(line[-1])
        if answer is not None:
            wanted = [float(cell) for cell in (line[1:2] if table == "breast-cancer" else line[1:4])]
            assert ([answer] if table == "breast-cancer" else answer) == pytest.approx(wanted, abs=LARGEST_DIFFERENCE)
    with pytest.raises(UsageError, match="in use"):
        export_model(hospital, tmp_path / "exported", None, has_onnx=False)
