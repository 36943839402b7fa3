"""A clinic whose programs are killed in the Newton rounds of federated-prior and do not restart."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from coordinator.rounds.run import Run
from coordinator.storage.run_record import sha256_of
from global_layers.one_process import Collection
from protos.plan.plan import Plan
from quickstart import federation
from quickstart.federation import Rehearsal, prepare
from quickstart.hospitals import uci_hospitals
from site_agent.desk.around_rounds import begin_prior
from site_agent.hospital import read_hospital
from tests.logged import lines_of
from tests.rehearsal.programs import children, running, says, wait_until

LOST = "va"
DEADLINES = {"grace_seconds": 1.0, "return_seconds": 2.0, "contribute_seconds": 300.0, "join_seconds": 600.0}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_clinic_lost_in_the_newton_rounds_ends_the_run_with_the_sums_of_all_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody is informed who is missing, and no clinic answers a sum of three.

    The coefficients are those of four.
    """
    (tmp_path / "tables").mkdir()
    plan_of_rehearsal = federation._plan
    monkeypatch.setattr(federation, "_plan", lambda *known: plan_of_rehearsal(*known) | {"deadlines": DEADLINES})
    hospitals = uci_hospitals(tmp_path / "tables")
    rehearsal = Rehearsal(
        folder=tmp_path, hospitals=hospitals, methods=("federated-prior",), rounds=2, seed=0, is_masked=True
    )
    prepare(rehearsal)
    names = [hospital.name for hospital in hospitals]
    log = tmp_path / "coordinator.log"

    with ExitStack() as stack:
        stack.enter_context(running(log, "coordinator", "start", "--config", tmp_path / "coordinator.yaml"))
        wait_until(says(log, "coordinator_listening"))
        words = ("site-agent", "join", "--config")
        gates = {
            name: stack.enter_context(running(tmp_path / f"{name}.log", *words, tmp_path / name / "hospital.yaml"))
            for name in names
        }
        # Round 0 is the statistics. A part of round 2 follows from the announced sums of the first Newton round.
        wait_until(lambda: (2, 0) in released(tmp_path / LOST), 600)
        for process in (gates[LOST].pid, *children(gates[LOST].pid)):
            os.kill(process, signal.SIGKILL)
        statuses = [gates[name].wait(120) for name in names if name != LOST]
        wait_until(says(log, '"run_over"'))

    (record_path,) = tmp_path.glob("coordinator/runs/*/record.json")
    record = json.loads(record_path.read_text())
    made = record["rounds_made"]
    assert (record["is_complete"], record["missing"]) == (False, [LOST])
    assert made >= 2
    assert statuses == [77] * 3  # the run is over for them, so no service starts them again
    for name in names:
        assert set(released(tmp_path / name)) <= {(number, 0) for number in range(made + 1)}
        assert not list((tmp_path / name).glob("state/reports/*"))
        if name != LOST:
            assert "a site did not come back in time" in (tmp_path / f"{name}.log").read_text()
    undisturbed = in_one_process(tmp_path, names, made)
    assert record["shared_parameters_sha256"] == sha256_of(undisturbed.result()[1])
    fitted, wanted = load_file(record_path.with_name("parameters.safetensors")), undisturbed.views()
    assert wanted["coefficients"].any()
    np.testing.assert_array_equal(fitted["coefficients"], wanted["coefficients"])
    np.testing.assert_array_equal(fitted["standard_errors"], wanted["standard_errors"])


def released(home: Path) -> Iterator[tuple[int, int]]:
    """Round and attempt of each contribution in a clinic's audit log."""
    path = home / "state" / "gate" / "gate.sqlite"
    for line in lines_of(path):
        facts = json.loads(line)["facts"]
        if facts["event"] == "contribution_released":
            yield facts["round"], facts["attempt"]


def in_one_process(folder: Path, names: list[str], rounds: int) -> Run:
    """So many rounds of all four clinics without sockets, masks or losses."""
    (path,) = folder.glob("coordinator/runs/*/plan.json")
    plan = Plan.model_validate_json(path.read_text())
    studies = {name: begin_prior(read_hospital(folder / name / "hospital.yaml"), plan)[0] for name in names}
    collection = Collection(plan)
    for number in range(rounds):
        collection.make(number, studies)
    return collection.run
