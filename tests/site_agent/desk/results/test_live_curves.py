"""A site's own curves during a study: only the trainer writes them, and they are shown only on this computer."""

from __future__ import annotations

import asyncio
import json
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from host.local_page import curves
from site_agent.desk.findings.live_page import LivePage, live_path
from site_agent.desk.results.live_curves import LiveCurves
from site_agent.hospital import Hospital
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.study import Asked, Study
from tests.for_each import for_each
from tests.site_agent.trainer.sites import first_values, make_plan, make_site, numbers_of, prepare, run_rounds

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
    return dict(json.loads(live_path(hospital.state_path, PLAN.run_name).read_bytes()))


def asked(page: LivePage, path: str = "/", host: str = "127.0.0.1", method: str = "GET") -> bytes:
    """What the page answers."""
    return asyncio.run(page.respond(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()))


def test_every_measured_round_is_on_disk_and_no_bit_of_training_differs(tmp_path: Path) -> None:
    """Losses of both parts and the headline metric, in a file for the trainer's user; training is as it was."""
    hospital, study, _ = watched(tmp_path / "seen")
    _, unseen, _ = prepare(make_site(tmp_path / "unseen"), PLAN)
    unseen.watch = lambda *_: None

    assert run_rounds(PLAN, [study]).tobytes() == run_rounds(PLAN, [unseen]).tobytes()

    facts, path = facts_of(hospital), live_path(hospital.state_path, PLAN.run_name)
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
    live_path(hospital.state_path, PLAN.run_name).write_bytes(b"{")
    restarted = LiveCurves(hospital.state_path, PLAN.run_name, study.own, preprocessing, Clock())
    restarted.take(4, study._training, study.choice)
    assert [number for number, _ in facts_of(hospital)["training"]] == [4]


def test_drawing_takes_a_twentieth_of_the_time_and_ends_no_study(tmp_path: Path) -> None:
    """Slow measuring skips rounds, never the last one, and the page counts them. A missing folder stops nothing."""
    hospital, study, preprocessing = watched(tmp_path, is_slow=True)
    values = run_rounds(PLAN, [study])
    assert [number for number, _ in facts_of(hospital)["training"]] == [1]
    study.close(Asked(round=6, stage=None), values)
    assert [number for number, _ in facts_of(hospital)["training"]] == [1, 6]
    assert [number for number, _ in facts_of(hospital)["validation"]] == [1, 2, 3, 4, 5, 6]
    text = LivePage("st-mary", hospital.state_path).main()
    assert "measured after 6 rounds" in text
    assert "In 4 rounds the loss on the training rows was not measured, to save time." in text

    (tmp_path / "file").write_text("")
    nowhere = LiveCurves(tmp_path / "file", PLAN.run_name, study.own, preprocessing, Clock())
    nowhere.take(1, study._training, study.choice)


def test_the_page_shows_the_newest_run_and_asks_nobody(tmp_path: Path) -> None:
    """Two charts as drawings in the page itself, the verdict when there is one, and no address of anything else."""
    hospital, study, _ = watched(tmp_path)
    run_rounds(PLAN, [study])
    page = LivePage("<b>st-mary</b>", hospital.state_path)

    text = asked(page).decode()
    assert text.count("<polyline") == 3
    assert "still running" in text.lower()
    assert "&lt;b&gt;st-mary&lt;/b&gt;" in text
    assert not re.search(r"(https?:)?//[a-z]|url\(|@import|<link rel=.stylesheet|<img|src=", text.replace("data:,", ""))
    report = hospital.state_path / "reports" / f"{PLAN.run_name}.json"
    report.write_text(json.dumps({"gain": {"sentence": "Joining <helped>."}}))
    assert "Joining &lt;helped&gt;." in asked(page, "/main").decode()


def test_nobody_else_is_answered(tmp_path: Path) -> None:
    """Another host's name, another method and other paths get nothing of it; without a study the page reports it."""
    page = LivePage("st-mary", tmp_path)

    assert b"No study has trained a model at this site yet" in asked(page)
    assert asked(page, host="evil.example.org").startswith(b"HTTP/1.1 400")
    assert asked(page, method="POST").startswith(b"HTTP/1.1 405")
    assert asked(page, "/reports/live").startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"validation": 3}', b'{"values": [[1, "<b>"], [2, 3]]}'])
def test_a_file_that_is_not_as_it_was_written_breaks_no_page(tmp_path: Path, content: bytes) -> None:
    """The page reports that there is nothing to draw."""
    place = live_path(tmp_path, "study-v1-0123456789ab")
    place.parent.mkdir(parents=True)
    place.write_bytes(content)

    text = asked(LivePage("st-mary", tmp_path)).decode()

    assert "No round of this run has been evaluated yet" in text
    assert "<b>" not in text


def test_lines_share_their_axes_and_say_what_they_are() -> None:
    """Two lines in one drawing have one scale, a legend, and words for those who do not see them."""
    drawn = curves({"a": [(1, 4.0), (3, 2.0)], "b": [(2, 1.0), (3, 3.0)]}, what="Loss", lowest_is_best=True)

    assert drawn.count("<polyline") == 2
    assert drawn.count('class="best"') == 1
    assert ">4<" in drawn
    assert ">1<" in drawn
    assert "Loss, a: from 4 after round 1 to 2 after round 3; lowest 2 after round 3." in drawn
    assert curves({"a": []}, what="Loss", lowest_is_best=True) == ""


@for_each("rounds", range(1, 5))
def test_a_short_run_is_shown(tmp_path: Path, rounds: int) -> None:
    """From the first measured round on the page has its figures, as points and in a table."""
    place = live_path(tmp_path, "study-v1-0123456789ab")
    place.parent.mkdir(parents=True)
    points = [[number, 0.5 + number] for number in range(1, rounds + 1)]
    facts = {"metric": "auroc", "training": points, "values": [], "validation": points, "measured": rounds + 1}
    place.write_text(json.dumps(facts))

    text = LivePage("st-mary", tmp_path).main()

    assert text.count('class="point"') == rounds
    assert text.count('<th scope="row"') == rounds
    assert f"{rounds + 0.5:.4f}" in text
    assert "After 1 round the loss was not a finite number" in text


@for_each("seed", range(10))
def test_a_long_run_keeps_its_best_round(tmp_path: Path, seed: int) -> None:
    """Of thousands of rounds some hundred points are drawn; the first, the last and the best one are among them."""
    place = live_path(tmp_path, "study-v1-0123456789ab")
    place.parent.mkdir(parents=True)
    best = int(np.random.default_rng(seed).integers(2, 5000))
    losses = [[number, 1.0 if number != best else 0.25] for number in range(1, 5001)]
    place.write_text(json.dumps({"metric": "auroc", "training": [], "values": [], "validation": losses}))

    text = LivePage("st-mary", tmp_path).main()

    assert f"from 1 after round 1 to 1 after round 5000; lowest 0.25 after round {best}." in text
    assert text.partition('points="')[2].partition('"')[0].count(",") < 420


def test_the_first_round_has_nothing_to_measure(tmp_path: Path) -> None:
    """Nobody has trained what comes down first, so no file is made of it."""
    hospital, study, _ = watched(tmp_path)

    assert study.choice.curve == []
    assert first_values(PLAN, study).size
    assert not live_path(hospital.state_path, PLAN.run_name).exists()
