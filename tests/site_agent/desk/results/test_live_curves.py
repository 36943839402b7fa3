"""A site's own curve during a study: only the trainer writes it, and it is shown only on this computer."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from site_agent.desk.after_rounds import LiveCurves
from site_agent.state_folders import live_curves_path
from site_agent.trainer.requests import Asked
from tests.site_agent.trainer.sites import make_plan, make_site, numbers_of, prepare, run_rounds

PLAN = make_plan(schedule={"aggregate": "every-epoch", "epochs": 6, "batches_per_epoch": 4})


def test_losses_are_on_disk_and_no_bit_of_training_differs(tmp_path: Path) -> None:
    """In a file for the trainer's user, with the last loss; training is as it was. A missing folder stops nothing."""
    hospital, study, _ = prepare(make_site(tmp_path / "seen"), PLAN)
    _, unseen, _ = prepare(make_site(tmp_path / "unseen"), PLAN)
    path = live_curves_path(hospital.state_path, PLAN.run_name)
    study.watch = LiveCurves(path).take
    (tmp_path / "file").write_text("")
    unseen.watch = LiveCurves(tmp_path / "file" / "curve.json").take

    values = run_rounds(PLAN, [study])
    assert values.tobytes() == run_rounds(PLAN, [unseen]).tobytes()
    study.close(Asked(round=6, stage=None), values)
    unseen.close(Asked(round=6, stage=None), values)

    assert numbers_of(study) == numbers_of(unseen)
    assert json.loads(path.read_bytes()) == [[measured.round, measured.loss] for measured in study.choice.curve]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == [path.name]
