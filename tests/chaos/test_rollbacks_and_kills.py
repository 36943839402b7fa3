"""A run with a rollback, and parts that stop before, during and after it: every bit is the same.

Coordinator, agents, gates, masks and studies are the programs' own; only what the sites think of a round is given.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from site_agent.trainer.held_out_check import HeldOutCheck
from tests.chaos.in_process import plan_of, to_the_end
from tests.chaos.test_kills import at_writes, quiet
from tests.for_each import in_turns

__all__ = ["quiet"]  # a fixture of these tests too
ACCEPTANCE = {"rule": "held-out-loss", "quorum": 2, "standard_errors": 2.0, "largest_rise": 0.2, "patience": 2}
REFUSED = {2, 4}  # the rounds whose parameters all sites refuse: the second rollback ends the training
METHODS = ("fedavg", "scaffold", "fedadam", "ditto", "player-fl", "global-layers")


@pytest.fixture(autouse=True)
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every site refuses the parameters of these rounds."""
    honest = HeldOutCheck.take

    def take(self: HeldOutCheck, round_number: int, *measured: Any) -> None:
        honest(self, round_number, *measured)
        self.refuses = round_number - self._plan.has_probe in REFUSED

    monkeypatch.setattr(HeldOutCheck, "take", take)


@pytest.mark.parametrize(("method", "is_masked"), in_turns(METHODS, [False, True], every=2))
def test_deaths_change_no_bit_of_a_run_that_is_rolled_back(tmp_path: Path, method: str, is_masked: bool) -> None:
    """Five stops at drawn writes: the run ends early, with two recorded rollbacks and the same bits."""
    schedule = {"aggregate": "every-steps", "rounds": 7, "steps_per_round": 3, "batch_rows": 4}
    plan = plan_of(
        method,
        acceptance=ACCEPTANCE,
        schedule=schedule,
        secure_aggregation="required" if is_masked else "off",
        snapshots={"every_rounds": 1 + METHODS.index(method) % 3, "every_seconds": None},
    )
    expected, _, disk = to_the_end(tmp_path / "undisturbed", plan, 0)
    numbers = set(random.Random(METHODS.index(method)).sample(range(20, len(disk.points)), 5))

    found, network, _ = to_the_end(tmp_path / "killed", plan, 0, at_writes(numbers))

    assert len(network.deaths) >= 3
    assert found == expected
    for folder in ("undisturbed", "killed"):
        (path,) = (tmp_path / folder).glob("coordinator/runs/*/record.json")
        record = json.loads(path.read_text())
        first = plan.has_probe
        assert [rollback["round"] - first for rollback in record["rollbacks"]] == sorted(REFUSED)
        assert record["training_rounds"] == max(REFUSED) + 1
