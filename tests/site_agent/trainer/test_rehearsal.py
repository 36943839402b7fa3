"""A trainer that rehearses: one round of every kind of plan without an approval, and nothing stored."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from protos.plan.plan import Plan
from site_agent.desk import after_rounds
from site_agent.gate.dry_run import Made, _make
from site_agent.gate.mishaps import TrainerFailed
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.worker import Worker
from site_agent.trainer_socket import GateEnd, TrainerEnd
from tests.protos.examples import table_one_of
from tests.site_agent.trainer.sites import make_plan, make_site

DENSE: dict[str, Any] = {"architecture": {"name": "dense", "hidden": [3, 2]}, "outputs": 1}
COLUMNS = ["mean_radius", "mean_texture", "mean_perimeter", "mean_area", "mean_smoothness", "mean_compactness"]
PLANS: dict[str, dict[str, Any]] = {
    "global-layers": {},
    "player-fl": {"method": {"name": "player-fl"}, "columns": COLUMNS} | DENSE,
    "scaffold": {
        "method": {"name": "scaffold"}, "columns": COLUMNS, "optimiser": {"name": "sgd", "learning_rate": 0.1},
    } | DENSE,
    "statistics": table_one_of({"name": "mean-radius", "low": 0.0, "high": 30.0}) | {"smallest_cell": 10},
}  # fmt: skip


def made(hospital: Hospital, plan: Plan, rehearsal: Path | None) -> tuple[Made, ...]:
    """What a dry run shows, with a trainer in a thread instead of a process."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=Worker(hospital, TrainerEnd(theirs), after_rounds, rehearsal=rehearsal).serve)
    thread.start()
    end = GateEnd(ours)
    try:
        return asyncio.run(_make(hospital, plan, end))
    finally:
        end.close()
        thread.join()
        theirs.close()


@pytest.mark.parametrize("name", PLANS)
def test_one_round_is_made_and_nothing_is_kept(tmp_path: Path, name: str) -> None:
    """Twice the same bytes, of the size that the plan says, and the site's state stays empty."""
    hospital, plan = read_hospital(make_site(tmp_path)), make_plan(**PLANS[name])
    contract = tmp_path / "contract.yaml"
    contract.write_text(contract.read_text().replace("name: mean_radius", "concept: mean-radius\n  name: mean_radius"))

    first, second = (made(hospital, plan, tmp_path / folder) for folder in ("one", "two"))

    assert first == second
    stages = {"player-fl": ["probe", "training"], "statistics": ["statistics"]}.get(name, ["training"])
    assert [entry.stage for entry in first] == stages
    assert all(entry.bytes > 8 and len(entry.digest) == 64 for entry in first)
    assert not (tmp_path / "state").exists()


def test_without_rehearsing_an_approval_is_needed(tmp_path: Path) -> None:
    """The same questions to an ordinary trainer are refused."""
    hospital = read_hospital(make_site(tmp_path))

    with pytest.raises(TrainerFailed):
        made(hospital, make_plan(), None)
