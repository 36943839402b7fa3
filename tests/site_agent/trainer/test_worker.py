"""The real trainer in a process of its own, with requests over a real socket: its answers, and what it never sends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from protos.errors import UnavailableError
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.wire.messages import SiteReason, Stage
from site_agent.desk import after_rounds
from site_agent.hospital import read_hospital
from site_agent.trainer import before_rounds
from site_agent.trainer import worker as worker_module
from site_agent.trainer.training.flat_network import Vector
from site_agent.trainer.worker import Worker
from site_agent.trainer_socket import Agreed, Check, Failed, Message, Prepare, TrainerGone
from tests.protos.privacy.private_plans import private_network_plan, private_plan
from tests.site_agent.trainer.asked import NOTHING, ScriptedSocket, as_bytes, conclude, question, train, trainer
from tests.site_agent.trainer.prior.prior_federation import SITES, make_hospital
from tests.site_agent.trainer.sites import approve_plan, make_plan, make_site, make_study, prepare, update_of, values_of

REPOSITORY = Path(__file__).parents[3]
CANARY = "Zebra4711"


def _start(plan: Plan) -> Vector:
    return manifest_of(plan).initial_parameters(plan.seed)


def _refused(config: Path, *questions: Message) -> Failed:
    """The answer to the last question, which is also the exit status; asked in this process."""
    trainer_socket = ScriptedSocket(*questions)
    status = Worker(read_hospital(config), trainer_socket, after_rounds).serve()  # type: ignore[arg-type]
    *_, answer = trainer_socket.answers
    assert len(trainer_socket.answers) == len(questions)
    assert isinstance(answer, Failed)
    assert answer.exit_status == status
    return answer


@pytest.mark.parametrize(
    "last",
    [
        "again", "beyond", "before", "stage", "layers", "probe", "early end", "short", "odd",
        "nan", "unprepared", "answer", "run", "plan",
    ],
)  # fmt: skip
def test_what_no_honest_agent_asks_ends_the_trainer(
    tmp_path: Path, last: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It prints the reason on its own side, returns nothing, and sends the agent a reason of the closed list."""
    plan, config = make_plan(), make_site(tmp_path)
    approve_plan(config, plan)
    prepare, first = Prepare("law-1", plan.canonical), _start(plan)
    poisoned = first.copy()
    poisoned[5] = np.nan
    questions: dict[str, tuple[Message, ...]] = {
        "again": (prepare, train(0, as_bytes(first)), train(0, as_bytes(first))),
        "beyond": (prepare, train(plan.schedule.rounds, as_bytes(first))),
        "before": (prepare, question(-1, int(Stage.PROBE), b"")), "stage": (prepare, question(0, 9, as_bytes(first))),
        "layers": (prepare, question(0, int(Stage.TRAINING), as_bytes(first), "zz")),
        "probe": (prepare, question(0, int(Stage.PROBE), b"")), "early end": (prepare, conclude(1, as_bytes(first))),
        "short": (prepare, train(0, as_bytes(first[:-1]))), "odd": (prepare, train(0, b"123")),
        "nan": (prepare, train(0, as_bytes(poisoned))), "unprepared": (train(0, as_bytes(first)),),
        "answer": (Agreed(),), "run": (Prepare("..", plan.canonical),), "plan": (Prepare("law-1", b"{}"),),
    }  # fmt: skip

    answer = _refused(config, *questions[last])

    said = capfd.readouterr().err
    assert answer == Failed(SiteReason.TRAINER_FAILED, 1)
    assert "site-trainer: The " in said
    assert "defect" not in said


def test_when_the_agent_goes_the_trainer_goes(tmp_path: Path) -> None:
    """Between two questions, or while an answer is on its way."""
    plan, config = make_plan(), make_site(tmp_path)
    approve_plan(config, plan)

    with trainer(config) as asked:
        assert asked.end()[0] == 0
    with trainer(config) as asked:
        asked.send_raw(worker_module.Check.__name__.encode()[:3])
        assert asked.end()[0] == 0


def test_a_diverged_study_is_told_with_its_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No model is written, and the federation learns nothing of it."""
    plan = make_plan(
        method={"name": "local"}, optimiser={"name": "sgd", "learning_rate": 10.0, "momentum": 0.99},
        schedule={"aggregate": "every-round", "epochs": 50, "batches_per_epoch": 4, "epochs_per_round": 50},
    )  # fmt: skip
    config = make_site(tmp_path, table="diabetes")
    approve_plan(config, plan)

    trainer_socket = ScriptedSocket(Prepare("law-1", plan.canonical), train(0, NOTHING), conclude(1, NOTHING))
    Worker(read_hospital(config), trainer_socket, after_rounds).serve()  # type: ignore[arg-type]

    assert trainer_socket.answers[-1] == Agreed()
    assert "Training diverged" in capfd.readouterr().err
    assert not list((tmp_path / "state/models").rglob("*.safetensors"))


@pytest.mark.parametrize(("kind", "every"), [("network", 1), ("prior", 14), ("prior", 7)])
def test_a_private_run_ends_alike_for_others_whatever_patients_make_of_the_report(
    kind: str, every: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A coordinator chooses the last values, and with them for which patients a model is undefined. So it would learn
    from a refusal whether such a patient exists, and no noise would hide that. A refusal because of too few patients
    for a report would show as much. People at the site read the reason, and no model is written."""
    plan = private_network_plan(rounds=1) if kind == "network" else private_plan()
    config = make_hospital(tmp_path / SITES[0], SITES[0], "breast-cancer")
    table = config.with_name("table.csv")
    first, *rows = table.read_text().splitlines()
    table.write_text("\n".join([first, *rows[::every]]) + "\n")
    if every == 7:  # four training rows with both outcomes
        config.write_text(config.read_text().replace("seed: 3", "seed: 4\n    test_share: 0.7"))
    approve_plan(config, plan)
    prior = plan if isinstance(plan, PriorPlan) else None
    first_values = _start(plan) if prior is None else np.zeros(prior.tensor.number_count, np.float32)
    last = np.full_like(first_values, 3e38) if prior is None else first_values
    stage = Stage.TRAINING if prior is None else Stage.STATISTICS
    asked = question(0, int(stage), as_bytes(first_values))
    trainer_socket = ScriptedSocket(Prepare(plan.run_name, plan.canonical), asked, conclude(1, as_bytes(last)))

    status = Worker(read_hospital(config), trainer_socket, after_rounds).serve()  # type: ignore[arg-type]

    said = capfd.readouterr().err
    assert [type(answer).__name__ for answer in trainer_socket.answers] == ["Prepared", "Trained", "Agreed"], said
    assert status == 0
    assert said.startswith("site-trainer: ")
    assert ("Training diverged" in said) == (kind == "network")
    assert ("All patients of one class would be in one of its folds" in said) == (every == 14)
    assert not list((config.parent / "state/models").rglob("*.safetensors"))


def test_a_full_disk_is_told_under_privacy_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the computer's, not the patients'. The site tries again when there is space."""
    plan = private_network_plan(rounds=1)
    config = make_hospital(tmp_path / SITES[0], SITES[0], "breast-cancer")
    approve_plan(config, plan)
    first = _start(plan)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(after_rounds, "make_report", full)
    asked = Prepare(plan.run_name, plan.canonical), train(0, as_bytes(first)), conclude(1, as_bytes(first))
    answer = _refused(config, *asked)

    assert (answer.reason, answer.exit_status) == (SiteReason.TRAINER_FAILED, UnavailableError.exit_status)


def _plant(config: Path) -> list[str]:
    """Insert words that must stay secret into every place that concerns patients."""
    folder = config.parent
    columns = [f"{CANARY}column", f"{CANARY}second"]
    table, contract = folder / "table.csv", folder / "contract.yaml"
    for old, new in zip(("mean_radius", "mean_texture"), columns, strict=True):
        table.write_text(table.read_text().replace(old, new))
        contract.write_text(contract.read_text().replace(old, new))
    table.write_text(table.read_text().replace("P0", f"{CANARY}P0"))
    table.rename(folder / f"{CANARY}table.csv")
    hospital = yaml.safe_load(config.read_text())
    hospital["data"]["table"] = f"{CANARY}table.csv"
    config.write_text(yaml.safe_dump(hospital))
    return columns


def test_nothing_of_a_patient_passes_the_trainer_socket(tmp_path: Path) -> None:
    """No column, file, identifier or value is in any byte of any answer, in text or as numbers. The answers are those
    of a whole study, which agrees with one in this process, and the trainer ends well."""
    plan, config = make_plan(), make_site(tmp_path, simple_models=False)
    _plant(config)
    approve_plan(config, plan)
    study, updates = make_study(config, plan), []

    with trainer(config) as asked:
        asked.ask(Check())
        asked.ask(Prepare("law-1", plan.canonical))
        shared = _start(plan)
        for number in range(plan.schedule.rounds):
            trained = asked.ask(train(number, as_bytes(shared)))
            updates.append(np.frombuffer(trained.payload, "<f4"))
            shared = shared + updates[-1]
        ended = asked.ask(conclude(plan.schedule.rounds, as_bytes(shared)))
        sent = asked.received
        status, said = asked.end()

    assert isinstance(ended, Agreed)
    assert status == 0, said
    np.testing.assert_allclose(update_of(study, 0, _start(plan)), updates[0], atol=1e-5)
    assert len(sent) > 4 * study.manifest.parameters * plan.schedule.rounds
    assert b"canary" not in sent.lower()
    assert CANARY.encode() not in sent
    private = [values for name, values in values_of(study).items() if not name.startswith("body.")]
    for rows in (study.dataset.training.features, study.dataset.test.features, *private):
        for number in np.unique(rows):
            # 0 and 1 are everywhere; three bytes more than a sign make any other number telling.
            if number not in (0.0, 1.0):
                assert np.float32(number).tobytes() * 2 not in sent
        if rows.size > 3:
            assert rows.astype("<f4").tobytes()[:16] not in sent


@pytest.mark.parametrize("kind", ["cell", "missing", "contract", "absent"])
def test_no_failure_quotes_the_table_to_the_agent(tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The operator reads the fault, and the agent gets a number and no word."""
    config = make_site(tmp_path)
    columns = _plant(config)
    table, contract = tmp_path / f"{CANARY}table.csv", tmp_path / "contract.yaml"
    match kind:
        case "cell":
            lines = table.read_text().splitlines()
            lines[4] = lines[4].replace(",", f",{CANARY}", 1)
            table.write_text("\n".join(lines))
        case "missing":
            table.write_text(table.read_text().replace(columns[0], "other"))
        case "contract":
            contract.write_text(contract.read_text() + f"\n{CANARY}: 1\n")
        case _:
            table.unlink()

    approve_plan(config, make_plan())
    answers = [_refused(config, question) for question in (Check(), Prepare("law-1", make_plan().canonical))]

    said = capfd.readouterr().err
    for answer in answers:
        # A table that is absent may be there later, so a service tries again.
        assert (answer.exit_status, answer.tensor, len(answer.payload)) == (1 if kind == "absent" else 78, "", 0)
        assert CANARY not in repr(answer)
    assert said.count("site-trainer: ") == 2


def test_a_defect_is_told_without_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An exception of a library may quote a cell; neither the agent nor the log gets its text."""
    plan, config = make_plan(), make_site(tmp_path)
    approve_plan(config, plan)

    def defective(*_: object) -> None:
        raise KeyError(f"{CANARY} 63 years old")

    monkeypatch.setattr(before_rounds, "begin_study", defective)
    trainer_socket = ScriptedSocket(Prepare("law-1", plan.canonical))
    status = Worker(read_hospital(config), trainer_socket, after_rounds).serve()  # type: ignore[arg-type]

    said = capfd.readouterr()
    assert status == 70
    assert trainer_socket.answers == [Failed(SiteReason.TRAINER_FAILED, 70)]
    assert CANARY not in said.err + said.out
    assert "KeyError at test_worker.py" in said.err


def test_a_network_that_was_not_approved_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The digest is computed from what the network would hand out, not from the plan."""
    plan, other = make_plan(), make_plan(architecture=make_plan().architecture.model_dump() | {"latent": 16})
    config = make_site(tmp_path)
    approve_plan(config, plan)
    _, study, preprocessing = prepare(config, other)
    monkeypatch.setattr(before_rounds, "begin_study", lambda *_: (study, preprocessing))

    trainer_socket = ScriptedSocket(Prepare("law-1", plan.canonical))
    status = Worker(read_hospital(config), trainer_socket, after_rounds).serve()  # type: ignore[arg-type]

    assert trainer_socket.answers == [Failed(SiteReason.NETWORK_DIFFERS, 78)]
    assert status == 78
    assert "other tensors or numbers than were approved here" in capfd.readouterr().err


def test_a_killed_trainer_is_noticed(tmp_path: Path) -> None:
    """The agent's request ends with a reason instead of waiting for ever."""
    with trainer(make_site(tmp_path)) as asked:
        asked.process.kill()
        asked.process.wait()

        with pytest.raises(TrainerGone):
            asked.ask(Check())
