"""The real programs of a statistics plan, killed at every round with SIGKILL: all files have the undisturbed bits."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import replace

import pytest

from quickstart.federation import Rehearsal
from tests.chaos.test_processes import LONGEST_SECONDS, Services, last_words
from tests.rehearsal.programs import called, prepared_here
from tests.statistics.federations import patients
from tests.statistics.test_whole_run import SITES, rehearsal_of


def _results(rehearsal: Rehearsal, *, kills: bool) -> tuple[set[bytes], list[str]]:
    """Every program's results, and who was killed: one process whenever a round is offered for the first time."""
    services, seen = Services(rehearsal, random.Random(3)), 0
    deadline = time.monotonic() + LONGEST_SECONDS
    try:
        services.start_all()
        while not services.tend() or len(list(rehearsal.folder.glob("*/state/statistics/*/results.json"))) < len(SITES):
            assert time.monotonic() < deadline, (services.killed, last_words(rehearsal.folder))
            offered = (rehearsal.folder / "coordinator.log").read_text().count("round_offered")
            if kills and offered > seen:
                services.strike()
                seen = offered
            time.sleep(0.02)
    finally:
        services.end()
    files = [*rehearsal.folder.glob("*/state/statistics/*/results.json")]
    files += rehearsal.folder.glob("coordinator/runs/*/results.json")
    assert len(files) == len(SITES) + 1
    return {file.read_bytes() for file in files}, services.killed


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_kills_at_every_round_change_no_bit(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coordinator, gates, agents and trainers are killed in the first round, each Newton round and the last round."""
    folder = tmp_path_factory.mktemp("kills")
    (folder / "calm" / "tables").mkdir(parents=True)
    rehearsal = rehearsal_of(folder / "calm", folder / "calm" / "tables", patients(0), monkeypatch)
    prepared_here(rehearsal)
    (plan,) = rehearsal.folder.glob("plan-*.yaml")
    for site in SITES:
        words = ("--config", rehearsal.folder / site / "hospital.yaml", "--plan", plan, "--by", "a test", "--yes")
        assert called("site-agent", "approve", *words).returncode == 0
    shutil.copytree(rehearsal.folder, folder / "killed")

    expected, _ = _results(rehearsal, kills=False)
    found, killed = _results(replace(rehearsal, folder=folder / "killed"), kills=True)

    print(f"\nkilled: {killed}")
    assert len(killed) >= 6
    assert len(found) == 1
    assert found == expected
