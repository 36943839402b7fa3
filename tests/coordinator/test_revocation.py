"""The federation office revokes a site of a run: nobody waits for it, and everybody is informed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from coordinator.commands.coordinator_cli import cli
from coordinator.rounds.engine import Engine
from protos.plan.plan import Plan
from tests.coordinator.in_memory import IDENTITIES, BehavingSite, Stage, coordinator_log
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import plan_with

WAITS = plan_with(IDENTITIES, rounds=2)


class Federation(Stage):
    """A stage whose register says who is revoked."""

    def __init__(self, state: Path, plan: Plan, revoked: set[str]) -> None:
        super().__init__(state, plan)
        self.revoked = revoked
        self.engine = Engine(
            plans=[plan],
            log=coordinator_log(state),
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


def _at_work(state: Path, plan: Plan, revoked: set[str] | None = None) -> Federation:
    stage = Federation(state, plan, revoked if revoked is not None else set())
    stage.engine.start()
    for name in "abc":
        stage.connect(BehavingSite(name))
    for stream in list(stage.streams):
        stage._deliver_one(stream)
    return stage


async def test_where_the_plan_waits_the_operator_is_told_who_why_and_what_to_do(tmp_path: Path) -> None:
    """The run is interrupted and not over; invited again with the key that the plan lists, the site brings it on."""
    stage = _at_work(tmp_path, WAITS)
    stage.revoke("c")
    status = json.loads(json.dumps(stage.engine.status()))

    assert (status["waits_for"], stage.engine.outcomes) == (["c"], [])
    assert status["sites"]["c"]["revoked"]
    (text,) = status["taken_out"]
    assert text.startswith("The federation office has revoked c. The run waits for it. ")
    assert all(word in text for word in ("pki invite c", "coordinator stop", "new version of the plan"))

    stage.revoked.clear()
    stage.connect(BehavingSite("c"))
    stage.deliver()
    assert [outcome.is_complete for outcome in stage.engine.outcomes] == [True]


async def test_a_coordinator_that_starts_again_knows_of_it(tmp_path: Path) -> None:
    """A revocation before or during its downtime is reported as well, and noted once."""
    stage = _at_work(tmp_path, WAITS)
    stage.revoke("c")
    stage.engine.stop()
    again = Federation(tmp_path, WAITS, stage.revoked | {"b"})
    again.engine.start()

    assert [text.split(". ")[0] for text in again.engine.status()["taken_out"]] == [
        "The federation office has revoked b",
        "The federation office has revoked c",
    ]
    again.engine.stop()
    assert [record["site"] for record in coordinator_log(tmp_path).records("run_revoked")] == ["c", "b"]


def test_the_status_says_it_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`coordinator status` shows the site as revoked and the sentences below the table."""

    told: list[bytes] = []

    async def scene() -> None:
        stage = _at_work(tmp_path, WAITS)
        stage.revoke("c")
        told.append(json.dumps(stage.engine.status()).encode())

    async def answered(_: object) -> bytes:
        return told[0]

    play(scene())

    monkeypatch.setattr("coordinator.commands.coordinator_cli.ask", answered)
    settings = SimpleNamespace(state=tmp_path)
    monkeypatch.setattr("coordinator.commands.coordinator_cli.read_configuration", lambda _: settings)
    (tmp_path / "coordinator.yaml").touch()

    shown = CliRunner().invoke(cli, ["status", "--config", str(tmp_path / "coordinator.yaml")]).output

    assert "│ revoked │" in shown
    assert "The federation office has revoked c." in shown
