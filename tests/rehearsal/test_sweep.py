"""A sweep of two learning rates with real programs: one approval at each site, two runs, one choice."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from protos.plan.documents import read_document
from protos.plan.plan import Plan
from tests.rehearsal.programs import finished
from tests.rehearsal.test_real_processes import federation_in


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_alternative_with_the_lowest_summed_loss_is_chosen(tmp_path: Path) -> None:
    """A rate that trains beats one that hardly moves, masked. The coordinator reads sums only, and names the run."""
    federation = federation_in(tmp_path / "f", is_masked=True)
    folder = federation.rehearsal.folder
    (path,) = folder.glob("plan-1-*.yaml")
    document = yaml.safe_load(path.read_text())
    document["optimiser"]["learning_rate"] = 1e-9
    sweep = {"keys": ["optimiser.learning_rate"], "alternatives": [[1e-9], [1e-3]]}
    path.write_text(yaml.safe_dump(document | {"version": 2, "checkpoint": "global", "sweep": sweep}))
    slow, fast = read_document(path, Plan, consequence="").alternatives

    for name in federation.names:
        words = ("--config", federation.config(name), "--plan", path, "--by", "A. Jones", "--yes")
        assert finished("site-agent", "approve", *words).returncode == 0
    with ExitStack() as stack:
        coordinator = stack.enter_context(federation.coordinator())
        agents = [stack.enter_context(federation.agent(name)) for name in federation.names]
        statuses = [process.wait(300) for process in (coordinator, *agents)]

    assert statuses == [0] * len(statuses), federation.log("coordinator").read_text()
    losses = {}
    for plan in (slow, fast):
        record = json.loads((folder / "coordinator/runs" / plan.run_name / "record.json").read_text())
        losses[plan.run_name] = record["best_validation_loss"]
    assert losses[fast.run_name] < losses[slow.run_name]
    (decided,) = [line for line in federation.log("coordinator").read_text().splitlines() if "sweep_decided" in line]
    assert fast.run_name in decided
    for name in federation.names:
        ended = [facts["run"] for facts in federation.audit(name) if facts["event"] == "run_finished"]
        assert ended == [slow.run_name, fast.run_name]
        chosen = [facts["chosen"] for facts in federation.audit(name) if facts["event"] == "sweep_decided"]
        assert chosen == [fast.run_name]
        (logged,) = [line for line in federation.log(name).read_text().splitlines() if "sweep_decided" in line]
        assert fast.run_name in logged
        words = finished("site-agent", "report", "--config", federation.config(name), "--run", slow.run_name).stdout
        assert f"The run {fast.run_name} has the lowest validation loss over all sites" in words
