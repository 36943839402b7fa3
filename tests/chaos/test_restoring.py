"""A coordinator or a site with an older state: the federation returns together, or a program refuses.

No other bits are ever computed, and no step is ever masked for a second set. Parts are the programs' own, in one
process and in made-up time.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from audit.restarting import restart_log
from coordinator.commands.coordinator_backup import _mark
from coordinator.storage.history import RESTORED_STEP
from coordinator.storage.journal import Entry, read_journal
from host.backup_archive import read_catalogue, write_backup
from host.restoring import restore
from protos.errors import OperatorError
from protos.plan.plan import Plan
from tests.chaos.in_process import Disk, Mortal, Results, plan_of, to_the_end, what_came_out
from tests.rehearsal.made_up_time import play


@pytest.fixture(autouse=True)
def quiet() -> None:
    """The log's output is not tested here."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


def a_plan(*, is_masked: bool) -> Plan:
    """Six or so rounds, saved after every second."""
    saving = {"every_rounds": 2, "every_seconds": None}
    return plan_of("ditto", secure_aggregation="required" if is_masked else "off", snapshots=saving)


class Rewinding:
    """Backs the coordinator up when its second round is offered; some rounds later it dies and comes back from that."""

    def __init__(self, network: Mortal, *, marks: bool, later: int) -> None:
        self._folder, self._marks, self._later = network.directory, marks, later
        self._offered = 0
        self.was_restored = False

    def strike(self, owner: str, point: str) -> bool:
        """Whether the coordinator dies at this write."""
        if point != "coordinator: after sync of journal" or self.was_restored:
            return False
        state, file = self._folder / "coordinator", self._folder / "one.backup"
        offered, before = len(decisions(self._folder, "offered")), self._offered
        self._offered = offered
        if offered == 2 and before < 2:
            write_backup(
                file, {"state": state}, program="coordinator", name="", made="then", software="test", key=bytes(32)
            )
        self.was_restored = offered == 2 + self._later
        if self.was_restored:
            shutil.move(state, self._folder / "newer")
            marking = (lambda staged: _mark(staged["state"], "then")) if self._marks else (lambda _: None)
            restore(file, read_catalogue(file, bytes(32)), {"state": state}, stamp="now", mark=marking)
        return self.was_restored


def decisions(folder: Path, kind: str) -> list[Entry]:
    """The entries of one kind in the coordinator's journal."""
    (journal,) = (folder / "coordinator" / "runs").glob("*/journal.jsonl")
    return [entry for entry in read_journal(journal) if entry["kind"] == kind]


def ran(directory: Path, plan: Plan, *, marks: bool, later: int) -> tuple[dict[str, str], Mortal]:
    """Run to the end, or until every site has refused. Return results and events."""
    found: list[tuple[dict[str, str], Mortal]] = []

    async def scene() -> None:
        with pytest.MonkeyPatch.context() as patch:
            results = Results(patch)
            directory.mkdir()
            random.seed(0)
            network = Mortal(directory, plan, Disk(patch, directory))
            network.strikes = Rewinding(network, marks=marks, later=later).strike
            for site in plan.site_names:
                network.add_site(site)
            async with asyncio.timeout(1e6):
                while network.is_down or not network.engine.finished.is_set():
                    await asyncio.sleep(1.0)
                    if all(site.error is not None for site in network.sites.values()):
                        break
            await asyncio.sleep(1.0)
            await network.close()
            is_over = list((directory / "coordinator" / "runs").glob("*/record.json"))
            found.append((results.of | what_came_out(network) if is_over else {}, network))

    play(scene())
    return found[0]


def test_a_restored_coordinator_goes_back_with_its_sites_to_the_same_bits(tmp_path: Path) -> None:
    """Restored with its mark, one round too old: all return together, with attempts that nobody has used."""
    plan = a_plan(is_masked=True)
    expected, _ = ran(tmp_path / "undisturbed", plan, marks=True, later=10**6)

    found, network = ran(tmp_path / "restored", plan, marks=True, later=2)

    assert network.deaths == ["coordinator"]
    assert found == expected
    (restored,) = decisions(network.directory, "restored")
    again = [entry for entry in decisions(network.directory, "offered") if entry["line"] > restored["line"]]
    assert again
    assert all(entry["attempt"] >= RESTORED_STEP for entry in again)


def test_a_copied_state_is_noticed(tmp_path: Path) -> None:
    """Restored by hand, without the mark: sites are disconnected with the reason, and nothing more is computed."""
    plan = a_plan(is_masked=False)

    found, network = ran(tmp_path / "copied", plan, marks=False, later=2)

    assert found == {}
    for site in network.sites.values():
        assert isinstance(site.error, OperatorError)
        assert "state of this run is older" in site.error.what
    assert len(decisions(network.directory, "ahead")) == 3
    (started,) = decisions(network.directory, "started")
    assert all(entry["line"] < started["line"] for entry in decisions(network.directory, "offered"))


class Restarting:
    """A person restarts the audit log of berlin in its fourth round. The old log has a damaged record."""

    def __init__(self, network: Mortal) -> None:
        self._path, self.is_restarted = network.directory / "berlin" / "audit.jsonl", False

    def strike(self, owner: str, point: str) -> bool:
        """Whether the agent stops at this write."""
        if owner != "agent berlin" or self.is_restarted or not self._path.exists():
            return False
        content = self._path.read_bytes().splitlines(keepends=True)
        released = [number for number, line in enumerate(content) if b'"contribution_released"' in line]
        if len(released) < 4:
            return False
        self.is_restarted = True
        content[released[-2]] = content[released[-2]].replace(b'"round":', b'"round":1')
        self._path.write_bytes(b"".join(content))
        restart_log(self._path, site="berlin", by="A. Jones", because="disk failed", now=lambda: datetime.now(UTC))
        return True


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_restarted_audit_log_lets_the_run_return_to_its_snapshot(tmp_path: Path, is_masked: bool) -> None:
    """The rounds of the log that was set aside still count, and the result has the same bits."""
    saving = {"every_rounds": 100, "every_seconds": None}  # the run returns to its first round
    plan = plan_of("ditto", secure_aggregation="required" if is_masked else "off", snapshots=saving)
    expected, _, _ = to_the_end(tmp_path / "undisturbed", plan, seed=0)

    found, network, _ = to_the_end(tmp_path / "restarted", plan, 0, lambda network: Restarting(network).strike)

    assert network.deaths == ["agent berlin"]
    assert decisions(network.directory, "back")
    assert list((tmp_path / "restarted" / "berlin").glob("audit.jsonl.before-*"))
    assert found == expected
