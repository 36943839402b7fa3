"""The gate's law: no sent byte contains anything that a hospital keeps private, with any method. Canaries are inserted
in cells, labels, identifiers, column and file names and in the words of failures. What the trainer hands to the process
with the network, and what the gate then lets out, is searched for them, for the raw and the prepared values of every
patient and for every number of private layers, as text, float32 and float64."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import yaml

from coordinator.rounds.phases import Gathering
from coordinator.rounds.run import new_run, terms_of
from host.audit_log import AuditLog
from protos.plan.exchange import stage_at
from protos.plan.methods import METHOD_NAMES
from protos.plan.plan import Plan
from protos.wire.messages import Bind, SiteReason
from site_agent.approving import approve
from site_agent.desk import after_rounds
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.before_rounds import begin_study
from site_agent.trainer.disk import SECRET_BYTES, write_whole
from site_agent.trainer.study import Study
from site_agent.trainer.worker import Worker
from site_agent.trainer_socket import FRAMING, Check, Conclude, Failed, Message, Prepare, Trained
from tests.laws.catalogue import NAMES, catalogue_plan
from tests.rehearsal.gates import NOON, gate_for, policy_with
from tests.site_agent.trainer.asked import ScriptedSocket, as_bytes, question

CANARY = "canary"
OWN_COLUMN = f"{CANARY}-marker"
PATIENTS = 40
by_method = pytest.mark.parametrize(
    "name",
    [
        name if name in METHOD_NAMES else pytest.param(name, marks=pytest.mark.slow)
        for name in NAMES
        if "fedbn" not in name  # its network of a table is so large that numbers are equal by chance
    ],
)


def _hospital_for(folder: Path, plan: Plan) -> Hospital:
    place = folder / f"{CANARY}-folder"
    place.mkdir()
    generator = np.random.default_rng(5)
    may_have_own = not plan.columns or plan.architecture.name in ("parallel", "columns")
    columns = ["a", "b", "c"][: len(plan.columns) or 3] + ([OWN_COLUMN] if may_have_own else [])
    notes = [f"{CANARY}-note"] if may_have_own else []
    with (place / f"{CANARY}-table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"{CANARY}-patient", *columns, *notes, f"{CANARY}-outcome"])
        for number in range(PATIENTS):
            values = generator.normal(100.0, 30.0, size=len(columns))
            cells = [f"{value:.7f}" for value in values]
            cells += [f"Mr {CANARY}{number % 7} has {CANARY}itis" for _ in notes]
            writer.writerow([f"{CANARY}-{number:04d}", *cells, f"{CANARY}-{'ill' if values[0] > 100 else 'well'}"])
    features: list[dict[str, Any]] = [{"name": name, "role": "feature", "type": "numeric"} for name in columns]
    features += [{"name": name, "role": "ignore"} for name in notes]
    target = {"name": f"{CANARY}-outcome", "role": "target", "task": "binary", "positive": [f"{CANARY}-ill"]}
    contract = {
        "format": {"header": True},
        "columns": [{"name": f"{CANARY}-patient", "role": "patient"}, *features, target],
    }
    (place / "contract.yaml").write_text(yaml.safe_dump(contract))
    content: dict[str, Any] = {
        "site": "ahus",
        "state": "state",
        "policy": {
            "methods": list(METHOD_NAMES), "secure_aggregation": "not-required", "smallest_sites": 1,
            "largest_rounds": 100, "largest_megabytes": 100.0, "largest_clipping_range": 1024.0,
        },
        "data": {
            "table": f"{CANARY}-table.csv", "contract": "contract.yaml", "split": {"seed": 1},
            "unaccepted_warnings": "tell",
        },
        "training": {"simple_models": False, "siloed_baseline": False},
    }  # fmt: skip
    (place / "hospital.yaml").write_text(yaml.safe_dump(content))
    hospital = read_hospital(place / "hospital.yaml")
    # A private and a shared number drawn from the same range are the same float32 once in some 20 million pairs. One
    # secret for all, because with a new one each time the search would find such a pair in one suite of a hundred.
    write_whole(hospital.state_path / "models" / "site.secret", bytes(range(SECRET_BYTES)))
    approve(hospital.state_path, plan, by="A. Jones", at=NOON)
    return hospital


class Watched(ScriptedSocket):
    """An agent that drives one run through a real gate; `frames` is all that came to it, `released` all that left."""

    def __init__(self, plan: Plan, hospital: Hospital) -> None:
        super().__init__()
        self._plan, self.run = plan, new_run(plan, terms_of(plan), Gathering())
        self.frames: list[bytes] = []
        self.released: list[bytes] = []
        self._audit = AuditLog(hospital.state_path / "audit.log", site="ahus", now=lambda: NOON)
        self._hospital = hospital
        self._questions = self._ask()

    def send(self, message: Message) -> None:
        """Keep an answer, and its very bytes."""
        self.frames.append(FRAMING.frame(message) + bytes(message.payload))
        super().send(message)

    def _ask(self) -> Iterator[Message]:
        plan = self._plan
        gate = gate_for(plan, self._audit, self._hospital.state_path, policy=policy_with(), site="ahus")
        yield Check()
        yield Prepare(plan.run_name, plan.canonical)
        number = 0
        while (stage := stage_at(plan, number, self.run.course.training_rounds)) is not None:
            offered = self.run.offered(number)
            best = -1 if offered.offer.best_round is None else offered.offer.best_round
            yield question(number, int(stage), as_bytes(np.array(offered.values)), offered.offer.layers.hex(), best)
            trained = self.answers[-1]
            assert isinstance(trained, Trained), trained
            position = number.to_bytes(32, "little")
            payload = memoryview(trained.payload)
            built = gate.build(position, offered.exchange, payload, rows=trained.rows)
            self.run.begin_sum(number, ["ahus"])
            for chunk in gate.release(built, Bind(number, 0, plan.site_names, 0)):
                self.released.append(bytes(chunk.body))
                self.run.running_sum.add("ahus", chunk.index, chunk.body)
            self.run.close_round(number)
            number += 1
        finish, values = self.run.result()
        best = -1 if finish.best_round is None else finish.best_round
        yield Conclude(finish.round, finish.layers.hex(), best, as_bytes(np.array(values)))
        self._audit.close()


def texts(hospital: Hospital) -> set[bytes]:
    """Every cell and name of the table, and the path that leads to it."""
    lines = Path(hospital.data.table).read_text().splitlines()
    cells = {cell for line in lines for cell in line.split(",") if len(cell) > 3}
    return {cell.encode() for cell in cells} | {CANARY.encode(), CANARY.upper().encode(), b"A. Jones"}


def numbers(hospital: Hospital, study: Study) -> set[bytes]:
    """Every value of every patient, raw and prepared, in both widths; and every private number of the networks."""
    cells = Path(hospital.data.table).read_text().replace("\n", ",").split(",")
    raw = np.array([float(cell) for cell in cells if cell.replace(".", "").isdecimal()])
    parts = (study.own.training, study.own.validation, study.own.test)
    prepared = np.concatenate([part.features.ravel() for part in parts]).astype(np.float64)
    state = study._training.local.state()
    federated = {tensor.name for tensor in study.manifest.tensors}
    private = [
        tensor.flatten().numpy().astype(np.float64)
        for name, tensor in state.items()
        if tensor.dtype == torch.float32 and not any(name.endswith(shared) for shared in federated)
    ]
    known = {0.0, 1.0, -1.0, *study.manifest.initial_parameters(study.plan.seed).astype(np.float64).tolist()}
    found: set[bytes] = set()
    for values in (raw, prepared, *private):
        kept = values[~np.isin(values, list(known))]
        found |= words(kept.astype("<f4")) | words(kept.astype("<f8"))
    return found


def words(values: npt.NDArray[np.generic]) -> set[bytes]:
    """The bytes of each number."""
    return {value.tobytes() for value in values.ravel()}


def windows(data: bytes, width: int) -> set[bytes]:
    """Each aligned word of some bytes."""
    return {data[place : place + width] for place in range(0, len(data) - width + 1, 4)}


@by_method
def test_no_canary_is_in_what_goes_out(tmp_path: Path, name: str) -> None:
    """Over a whole run, they are neither in a frame to the process with the network nor in a released chunk."""
    sites = [{"name": site, "identity": "-".join([f"aaa{site[0]}"] * 8)} for site in ("ahus", "berlin", "cluj")]
    plan = catalogue_plan(name, checkpoint="latest" if name == "local" else "global", sites=sites)
    hospital = _hospital_for(tmp_path, plan)
    trainer_socket = Watched(plan, hospital)
    worker = Worker(hospital, trainer_socket, after_rounds)  # type: ignore[arg-type]
    studies: list[Study] = []
    conclude, keep = worker._conclude, studies.append

    def watched(asked: Conclude) -> Any:
        keep(worker._ready())
        return conclude(asked)

    worker._conclude = watched  # type: ignore[method-assign]  # only to look at the study before it is forgotten
    status = worker.serve()

    assert status == 0
    assert len(trainer_socket.released) >= plan.rounds
    outgoing = b"".join((*trainer_socket.frames, *trainer_socket.released))
    assert [text for text in texts(hospital) if text in outgoing] == []
    planted = numbers(hospital, studies[0])
    assert len(planted) > 500
    for data in (*(frame for frame in trainer_socket.frames), *trainer_socket.released):
        header = len(data) % 4
        for width in (4, 8):
            assert not windows(data[header:], width) & {word for word in planted if len(word) == width}
    log = (hospital.state_path / "audit.log").read_bytes()
    assert CANARY.encode() not in log


FAILURES: dict[str, Any] = {
    "a defect that quotes a patient": ValueError(f"{CANARY} 104.5"),
    "a key error with a name": KeyError(OWN_COLUMN),
    "an operating system's words": OSError(2, "No such file", f"/{CANARY}/{CANARY}-table.csv"),
    "words that cannot be encoded": UnicodeDecodeError("utf-8", CANARY.encode(), 0, 1, CANARY),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_no_words_of_a_failure_go_out(tmp_path: Path, failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in training, the frame that tells of it holds numbers of a closed list."""
    plan = catalogue_plan("fedavg")
    hospital = _hospital_for(tmp_path, plan)
    trainer_socket = Watched(plan, hospital)

    def fails(*_: object) -> None:
        raise FAILURES[failure]

    monkeypatch.setattr(Study, "train", fails)
    Worker(hospital, trainer_socket, after_rounds).serve()  # type: ignore[arg-type]

    assert isinstance(trainer_socket.answers[-1], Failed)
    assert trainer_socket.answers[-1].reason == SiteReason.TRAINER_FAILED
    outgoing = b"".join(trainer_socket.frames)
    assert [text for text in texts(hospital) if text in outgoing] == []


@pytest.mark.parametrize("cell", ["104,5", f"{CANARY}-word", "1e999", '"broken', "\x00"])
def test_a_table_that_does_not_fit_is_not_quoted(tmp_path: Path, cell: str) -> None:
    """A cell against the contract ends in a frame without any cell, column or path."""
    plan = catalogue_plan("fedavg")
    hospital = _hospital_for(tmp_path, plan)
    table = Path(hospital.data.table)
    lines = table.read_text().splitlines()
    first, _, *rest = lines[3].split(",")
    lines[3] = ",".join([first, cell, *rest])
    table.write_text("\n".join(lines) + "\n")
    trainer_socket = Watched(plan, hospital)

    Worker(hospital, trainer_socket, after_rounds).serve()  # type: ignore[arg-type]

    assert isinstance(trainer_socket.answers[-1], Failed)
    assert trainer_socket.answers[-1].reason == SiteReason.DATA_UNFIT
    facts = json.loads(trainer_socket.frames[-1][trainer_socket.frames[-1].index(b"{") :])
    assert {type(value) for value in facts.values()} <= {int, str}
    assert facts["tensor"] == ""
    assert [text for text in texts(hospital) if text in b"".join(trainer_socket.frames)] == []


def test_the_search_finds_what_is_planted(tmp_path: Path) -> None:
    """A frame that did hold a cell, a prepared value or a private number would be found."""
    plan = catalogue_plan("global-layers")
    hospital = _hospital_for(tmp_path, plan)
    study, _ = begin_study(hospital, plan, hospital.state_path)
    planted = numbers(hospital, study)
    value = study.own.training.features[0, 0]
    private = next(v for n, v in study._training.flat.values().items() if n.startswith("input."))

    assert any(text in b"xx" + f"{CANARY}-0007".encode() for text in texts(hospital))
    assert windows(np.float32(value).tobytes(), 4) & planted
    assert windows(np.asarray(private, "<f4").tobytes(), 4) & planted
