"""Whole runs over the trainer socket, with the requests of an agent that has a coordinator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.prior.prior_gain import CONCEPTS, uci_tables
from benchmarks.private_networks import network_plan_of
from coordinator.rounds.phases import Gathering
from coordinator.rounds.run import new_run, terms_of
from protos.plan.exchange import stage_at
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_json
from protos.wire.messages import SiteReason, Stage
from site_agent.desk import after_rounds
from site_agent.gate.door import Builder, payload_bytes
from site_agent.hospital import read_hospital
from site_agent.trainer.worker import Worker
from site_agent.trainer_socket import Agreed, Conclude, Failed, Message, Prepare, Trained
from tests.site_agent.trainer.asked import NOTHING, ScriptedSocket, as_bytes, question, train
from tests.site_agent.trainer.sites import approve_plan, make_plan, make_site, make_study


class _Coordinated(ScriptedSocket):
    """An agent that asks for every round that a coordinator with this one site offers, and keeps what it asked."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan, self.run = plan, new_run(plan, terms_of(plan), Gathering())
        self.asked: list[tuple[Stage, int]] = []
        self._questions = self._ask()

    def _ask(self) -> Iterator[Message]:
        plan, builder = self._plan, Builder(self._plan, trains=True, smallest_rows=1)
        yield Prepare("law-1", plan.canonical)
        while (stage := stage_at(plan, len(self.asked), self.run.course.training_rounds)) is not None:
            number, offered = len(self.asked), self.run.offered(len(self.asked))
            best = -1 if offered.offer.best_round is None else offered.offer.best_round
            down = as_bytes(np.array(offered.values))
            yield question(number, int(stage), down, offered.offer.layers.hex(), best)
            trained = self.answers[-1]
            assert isinstance(trained, Trained)
            assert len(trained.payload) == payload_bytes(offered.exchange)
            assert (trained.rows > 0) == (stage is Stage.TRAINING)
            built = builder.build(b"", offered.exchange, memoryview(trained.payload), rows=trained.rows)
            self.run.begin_sum(number, ["ahus"])
            for index in range(offered.exchange.layout.chunks):
                self.run.running_sum.add("ahus", index, offered.exchange.layout.body(built.buffer, index))
            assert self.run.is_consistent
            self.run.close_round(number)
            self.asked.append((stage, len(trained.payload)))
        finish, values = self.run.result()
        best = -1 if finish.best_round is None else finish.best_round
        yield Conclude(finish.round, finish.layers.hex(), best, as_bytes(np.array(values)))


@pytest.mark.parametrize("method", ["player-fl", "apfl"])
def test_a_run_with_every_stage_over_the_trainer_socket(tmp_path: Path, method: str) -> None:
    """Probe, training and validation are answered with what each exchange lets up, by rows; then it ends."""
    config = make_site(tmp_path, simple_models=False)
    columns = list(make_study(config, make_plan()).own.columns)
    plan = make_plan(
        method={"name": method}, architecture={"name": "dense", "hidden": [4, 3]}, columns=columns, outputs=1,
        schedule={"aggregate": "every-epoch", "epochs": 4, "batches_per_epoch": 2}, checkpoint="global",
        weighting={"name": "rows", "largest_rows": 512}, masking={"clipping_range": 64.0},
    )  # fmt: skip
    approve_plan(config, plan)
    trainer_socket = _Coordinated(plan)

    status = Worker(read_hospital(config), trainer_socket, after_rounds).serve()  # type: ignore[arg-type]

    stages = [stage for stage, _ in trainer_socket.asked]
    probe = [Stage.PROBE] if method == "player-fl" else []
    report = json.loads((tmp_path / "state/reports/law-1.json").read_text())
    assert status == 0
    assert trainer_socket.answers[-1] == Agreed()
    assert stages == [*probe, *[Stage.TRAINING] * 4, Stage.VALIDATION]
    assert trainer_socket.asked[-1][1] == 8 * 2  # weight and loss
    assert report["federated"]["checkpoint"]["round"] == trainer_socket.run.course.best_round


def test_a_restarted_trainer_skips_no_round(tmp_path: Path) -> None:
    """Without the state after the last round it refuses to train."""
    plan, config = make_plan(method={"name": "local"}), make_site(tmp_path)
    approve_plan(config, plan)

    def answer_to(number: int) -> Message:
        asked = ScriptedSocket(Prepare("law-1", plan.canonical), train(number, NOTHING))
        Worker(read_hospital(config), asked, after_rounds).serve()  # type: ignore[arg-type]
        return asked.answers[-1]

    assert isinstance(answer_to(0), Trained)
    later = answer_to(1)

    assert isinstance(later, Failed)
    assert later.reason is SiteReason.STATE_LOST
    assert isinstance(answer_to(0), Trained)  # from the state that it has


def test_private_layers_over_the_trainer_socket_follow_from_the_sums_that_the_gate_returns(tmp_path: Path) -> None:
    """A trainer that joins at the second round answers it as one that made the first. Without all sums it refuses."""
    uci = CONCEPTS.parent
    changes = {"method": {"name": "fedper"}, "outputs": None}
    whole = json.loads(network_plan_of(uci_tables(uci), 1.0, rounds=3, hidden=(4,)).canonical)
    plan = plan_from_json(json.dumps(whole | changes))
    manifest, own = manifest_of(plan), plan.own_numbers
    down, shared = manifest.initial_parameters(plan.seed).tobytes(), 8 * len(manifest.scalars)

    def answers(name: str, *payloads: tuple[int, bytes]) -> list[Message]:
        asked = ScriptedSocket(
            Prepare("run-1", plan.canonical), *(train(number, memoryview(bytearray(sent))) for number, sent in payloads)
        )
        (tmp_path / name).mkdir()
        config = make_site(tmp_path / name)
        content = yaml.safe_load(config.read_text()) | {"site": "va"}
        content["data"] |= {"table": str(uci / "va.data"), "contract": str(uci / "va.yaml")}
        config.write_text(yaml.safe_dump(content))
        approve_plan(config, plan)
        Worker(read_hospital(config), asked, after_rounds).serve()  # type: ignore[arg-type]
        return asked.answers

    kept = [np.full(own, size << 34, "<i8").tobytes() for size in (0, 1, 2)]
    _, first, second = answers("one", (0, down + kept[0]), (1, down + kept[1]))
    _, late = answers("two", (1, down + kept[1]))
    _, other = answers("three", (1, down + kept[2]))
    _, short = answers("four", (1, kept[1][8:]))

    assert own == 4 + 1
    assert len(first.payload) == shared + 8 * own
    assert bytes(second.payload)[:shared] == bytes(late.payload)[:shared] != bytes(other.payload)[:shared]
    assert bytes(second.payload)[shared:] != bytes(late.payload)[shared:]  # noise of their own
    assert isinstance(short, Failed)
