"""How runs end that are stopped, repeated, or lose a site for good: nothing that was made is lost."""

from __future__ import annotations

from pathlib import Path

from protos.wire.messages import CoordinatorReason
from tests.coordinator.in_memory import IDENTITIES, BehavingSite, Stage
from tests.rehearsal.study import plan_with


def all_connected(stage: Stage) -> list[BehavingSite]:
    """The three sites, each with a stream."""
    sites = [BehavingSite(name) for name in "abc"]
    for site in sites:
        stage.connect(site)
    return sites


async def test_a_finished_run_is_never_made_or_written_again(tmp_path: Path) -> None:
    """A restarted coordinator does not change a complete record, and reports that all is over."""
    plan = plan_with(IDENTITIES, rounds=2)

    first = Stage(tmp_path, plan)
    first.engine.start()
    all_connected(first)
    first.deliver()
    (folder,) = (tmp_path / "runs").iterdir()
    before = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    again = Stage(tmp_path, plan)
    again.engine.start()

    assert again.engine.finished.is_set()
    assert before == {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert before["record.json"].count(b'"is_complete": true') == 1


async def test_a_run_that_a_person_stops_is_on_record_and_never_made_again(tmp_path: Path) -> None:
    """What was made stays on disk, and the sites are informed that the run is over, not that it goes on."""
    stage = Stage(tmp_path, plan_with(IDENTITIES, rounds=2))
    stage.engine.start()
    for name in "abc":
        stage.connect(BehavingSite(name))
    for stream in list(stage.streams):  # each joins; nobody has contributed yet
        stage._deliver_one(stream)
    assert stage.engine.end_run()

    assert [outcome.is_by_person for outcome in stage.engine.outcomes] == [True]  # so the program ends with 0
    (record,) = stage.records()
    assert (record["is_complete"], record["rounds_made"]) == (False, 0)
    assert record["reason"] == "it was stopped by a person"
    again = Stage(tmp_path, plan_with(IDENTITIES, rounds=2))
    again.engine.start()
    assert again.engine.finished.is_set()
    stage.deliver()
    farewells = [stream.site.farewell for stream in stage.streams]
    assert all(farewell and farewell.reason is CoordinatorReason.RUN_STOPPED for farewell in farewells)
