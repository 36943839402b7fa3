"""A site's own curves during a study: only the trainer writes them, and they are shown only on this computer."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from site_agent.desk.results.live_curves import LiveCurves
from site_agent.hospital import Hospital
from site_agent.state_folders import live_curves_path
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.requests import Asked
from site_agent.trainer.study import Study
from tests.site_agent.trainer.sites import make_plan, make_site, numbers_of, prepare, run_rounds

PLAN = make_plan(schedule={"aggregate": "every-epoch", "epochs": 6, "batches_per_epoch": 4})


class Clock:
    """Made-up seconds: a day between two rounds, of which drawing takes none, or as much as all else."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self._looks, self._is_slow = 0, is_slow

    def __call__(self) -> float:
        """The next look; each drawing begins and ends with one."""
        self._looks += 1
        return 86400.0 * (self._looks if self._is_slow else (self._looks + 1) // 2)


def watched(folder: Path, *, is_slow: bool = False) -> tuple[Hospital, Study, Preprocessing]:
    """A study whose every measured round is drawn."""
    hospital, study, preprocessing = prepare(make_site(folder), PLAN)
    study.watch = LiveCurves(hospital.state_path, PLAN.run_name, study.own, preprocessing, Clock(is_slow=is_slow)).take
    return hospital, study, preprocessing


def facts_of(hospital: Hospital) -> dict[str, Any]:
    """The file as it lies there."""
    return dict(json.loads(live_curves_path(hospital.state_path, PLAN.run_name).read_bytes()))


def test_every_measured_round_is_on_disk_and_no_bit_of_training_differs(tmp_path: Path) -> None:
    """Losses of both parts and the headline metric, in a file for the trainer's user; training is as it was."""
    hospital, study, _ = watched(tmp_path / "seen")
    _, unseen, _ = prepare(make_site(tmp_path / "unseen"), PLAN)
    unseen.watch = lambda *_: None

    assert run_rounds(PLAN, [study]).tobytes() == run_rounds(PLAN, [unseen]).tobytes()

    facts, path = facts_of(hospital), live_curves_path(hospital.state_path, PLAN.run_name)
    assert numbers_of(study) == numbers_of(unseen)
    assert facts["metric"] == "auroc"
    assert facts["validation"] == [[measured.round, measured.loss] for measured in study.choice.curve]
    for key in ("training", "values"):
        assert [number for number, _ in facts[key]] == [1, 2, 3, 4, 5]
    assert all(0.0 <= value <= 1.0 for _, value in facts["values"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_trainer_that_is_started_again_goes_on_with_its_curves(tmp_path: Path) -> None:
    """Repeated rounds replace those before, and the earlier ones stay. A damaged file is replaced."""
    hospital, study, preprocessing = watched(tmp_path)
    run_rounds(PLAN, [study])
    before = facts_of(hospital)

    again = LiveCurves(hospital.state_path, PLAN.run_name, study.own, preprocessing, Clock())
    again.take(3, study._training, study.choice)
    assert [number for number, _ in facts_of(hospital)["training"]] == [1, 2, 3]
    assert facts_of(hospital)["training"][:2] == before["training"][:2]
    live_curves_path(hospital.state_path, PLAN.run_name).write_bytes(b"{")
    restarted = LiveCurves(hospital.state_path, PLAN.run_name, study.own, preprocessing, Clock())
    restarted.take(4, study._training, study.choice)
    assert [number for number, _ in facts_of(hospital)["training"]] == [4]


def test_drawing_takes_a_twentieth_of_the_time_and_ends_no_study(tmp_path: Path) -> None:
    """Slow measuring skips rounds, never the last one. A missing folder stops nothing."""
    hospital, study, preprocessing = watched(tmp_path, is_slow=True)
    values = run_rounds(PLAN, [study])
    assert [number for number, _ in facts_of(hospital)["training"]] == [1]
    study.close(Asked(round=6, stage=None), values)
    assert [number for number, _ in facts_of(hospital)["training"]] == [1, 6]
    assert [number for number, _ in facts_of(hospital)["validation"]] == [1, 2, 3, 4, 5, 6]

    (tmp_path / "file").write_text("")
    nowhere = LiveCurves(tmp_path / "file", PLAN.run_name, study.own, preprocessing, Clock())
    nowhere.take(1, study._training, study.choice)
