"""The federation office revokes a site of a run: nobody waits for it, and everybody is informed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from coordinator.coordinator_cli import cli
from coordinator.rounds.engine import Engine
from coordinator.rounds.phases import Over
from coordinator.rounds.taken_out import explained
from coordinator.storage.ending import FILE
from coordinator.storage.history import History
from protos.plan.plan import Plan
from tests.coordinator.in_memory import IDENTITIES, BehavingSite, Stage
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import plan_with

GOES_ON = plan_with(IDENTITIES, rounds=2, changes={"quorum": 2, "on_lost_site": "continue"})
WAITS = plan_with(IDENTITIES, rounds=2)


class Federation(Stage):
    """A stage whose register says who is revoked."""

    def __init__(self, state: Path, plan: Plan, revoked: set[str]) -> None:
        super().__init__(state, plan)
        self.revoked = revoked
        self.engine = Engine(
            plans=[plan],
            state=state,
            identity_of=IDENTITIES.get,
            clock=asyncio.get_running_loop().time,
            revoked=lambda: sorted(self.revoked),
        )

    def revoke(self, site: str) -> None:
        """As the office does, and the register's watch after it: the stream ends first, where there is one."""
        self.revoked.add(site)
        for stream in [stream for stream in self.streams if stream.site.name == site]:
            self.engine.removed(site)
            self.cut(stream)
        self.engine.recheck()


def at_work(state: Path, plan: Plan, revoked: set[str] | None = None) -> Federation:
    """Three sites that have joined; nobody has contributed yet."""
    stage = Federation(state, plan, revoked if revoked is not None else set())
    stage.engine.start()
    for name in "abc":
        stage.connect(BehavingSite(name))
    for stream in list(stage.streams):
        stage._deliver_one(stream)
    return stage


@pytest.mark.parametrize("is_away", [False, True])
def test_where_the_plan_says_so_the_others_go_on_at_once(tmp_path: Path, is_away: bool) -> None:
    """The run ends with the mean of the others, whether the revoked site was connected or away; the record names it."""

    async def scene() -> None:
        stage = at_work(tmp_path, GOES_ON)
        if is_away:
            stage.cut(stage.streams[2])
        stage.revoke("c")
        stage.deliver()

        assert [outcome.is_complete for outcome in stage.engine.outcomes] == [True]
        np.testing.assert_array_equal(stage.vector(GOES_ON), np.full(10, 2 * 1.5, np.float32))
        happenings = stage.records()[0]["happenings"]
        assert isinstance(happenings, list)
        assert [entry["site"] for entry in happenings if entry["kind"] == "revoked"] == ["c"]

    play(scene())


def test_where_the_plan_waits_the_operator_is_told_who_why_and_what_to_do(tmp_path: Path) -> None:
    """The run is interrupted and not over; invited again with the key that the plan lists, the site brings it on."""

    async def scene() -> None:
        stage = at_work(tmp_path, WAITS)
        stage.revoke("c")
        status = json.loads(json.dumps(stage.engine.status()))

        assert (status["run"]["phase"], stage.engine.outcomes) == ("interrupted", [])
        assert status["sites"]["c"]["revoked"]
        (text,) = status["taken_out"]
        assert text.startswith("The federation office has revoked c. The run waits for it until ")
        assert all(word in text for word in ("pki invite c", "coordinator stop", "new version of the plan"))

        stage.revoked.clear()
        stage.connect(BehavingSite("c"))
        stage.deliver()
        assert [outcome.is_complete for outcome in stage.engine.outcomes] == [True]

    play(scene())


def test_a_coordinator_that_starts_again_knows_of_it(tmp_path: Path) -> None:
    """A revocation before or during its downtime is reported as well, and noted once."""

    async def scene() -> None:
        stage = at_work(tmp_path, WAITS)
        stage.revoke("c")
        stage.engine.stop()
        again = Federation(tmp_path, WAITS, stage.revoked | {"b"})
        again.engine.start()

        assert [text.split(". ")[0] for text in again.engine.status()["taken_out"]] == [
            "The federation office has revoked b",
            "The federation office has revoked c",
        ]
        again.engine.stop()
        (journal,) = (tmp_path / "runs").glob("*/journal.jsonl")
        entries = [json.loads(line) for line in journal.read_text().splitlines()]
        assert [entry["site"] for entry in entries if entry["kind"] == "revoked"] == ["c", "b"]

    play(scene())


def test_nobody_stays_for_it_when_all_is_over(tmp_path: Path) -> None:
    """A coordinator that waits until all have heard of the end no longer waits for one that is revoked meanwhile."""

    async def scene() -> None:
        stage = at_work(tmp_path, WAITS)
        stage.deliver()
        (tmp_path / FILE).write_text(json.dumps({WAITS.run_name: ["a", "b"]}))  # as if c had been away
        again = Federation(tmp_path, WAITS, set())
        again.engine.start()
        assert not again.engine.ending.all_heard.is_set()
        again.revoke("c")

        assert again.engine.ending.all_heard.is_set()

    play(scene())


def test_before_a_run_begins_the_others_begin_without_it(tmp_path: Path) -> None:
    """Nobody waits for a site to join that was revoked before, where the plan's quorum is there."""

    async def scene() -> None:
        stage = Federation(tmp_path, GOES_ON, {"c"})
        stage.engine.start()
        for name in "ab":
            stage.connect(BehavingSite(name))
        stage.deliver()

        assert [outcome.is_complete for outcome in stage.engine.outcomes] == [True]

    play(scene())


def test_a_run_that_ends_for_want_of_it_says_so() -> None:
    """Whoever reads why the run is over reads who was revoked, by whom, and what can go on; others read as ever."""
    history = History()
    for site in "bc":
        history.take({"kind": "revoked", "site": site})
    history.take({"kind": "joined", "site": "b"})
    over = Over(is_complete=False, reason="a site did not come back in time", missing=frozenset("bc"))

    said = explained(over, history).reason

    assert said.startswith("a site did not come back in time: the federation office revoked c; the researcher can")
    assert explained(over, History()) == over


def test_the_status_says_it_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`coordinator status` shows the site as revoked and the sentences below the table."""

    told: list[bytes] = []

    async def scene() -> None:
        stage = at_work(tmp_path, WAITS)
        stage.revoke("c")
        told.append(json.dumps(stage.engine.status()).encode())

    async def answered(_: object) -> bytes:
        return told[0]

    play(scene())

    monkeypatch.setattr("coordinator.serve.read_status", answered)
    monkeypatch.setattr("coordinator.coordinator_cli.read_configuration", lambda _: None)
    (tmp_path / "coordinator.yaml").touch()

    shown = CliRunner().invoke(cli, ["status", "--config", str(tmp_path / "coordinator.yaml")]).output

    assert "│ revoked │" in shown
    assert "The federation office has revoked c. The run waits for it until" in shown
