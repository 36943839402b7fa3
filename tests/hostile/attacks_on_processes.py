"""A controlled process of a hospital attacks the other processes of the same hospital. The processes are real, with
users of their own and with the modes that the package's own file sets. Only root can become another user, so these
attacks need root."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import yaml

import site_agent.trainer.worker
from host.audit_log import AuditLog
from protos.errors import ConfigurationError
from protos.plan.plan import Plan
from site_agent.desk import after_rounds
from site_agent.gate.site_certificates import SiteCertificates
from site_agent.hospital import Hospital, read_hospital
from site_agent.state_folders import gate_folder, gate_store_path
from site_agent.trainer.before_rounds import begin_study
from site_agent.trainer.worker import Worker
from site_agent.trainer_process import _listen
from site_agent.trainer_socket import TrainerEnd
from tests.hostile.attack import Attack, in_copy, patched, scratch
from tests.hostile.imprinting import COLUMNS, PLAN, inputs_read, rows_read
from tests.hostile.real_trainers import plan_for
from tests.rehearsal.federation import Office, utc_now
from tests.rehearsal.test_pinned_federation import Agent
from tests.site_agent.reachable import let_others_in
from tests.site_agent.trainer.sites import make_site

REPOSITORY = Path(__file__).parents[2]
MODES = REPOSITORY / "deploy" / "systemd" / "tmpfiles.d" / "global-layers-site.conf"
STATE = "/var/lib/global-layers/site"
# Users and groups that nobody on this computer has, by their names in the package's files.
USERS = {"root": 0, "site-agent": 61_001, "site-gate": 61_002, "site-trainer": 61_003}
GROUPS = USERS | {"global-layers": 61_010, "site-gate-socket": 61_011, "site-trainer-socket": 61_012}
OF_THE_AGENT = "site-agent", "site-gate-socket"  # its group, and the one of the gate's socket
ENOUGH_ROWS = 20  # of 114 that the attacker has to read for its success


def _give_folders(state: Path) -> None:
    for line in MODES.read_text().splitlines():
        words = line.split()
        if words[:1] != ["d"] or not words[1].startswith(STATE) or words[1].startswith(f"{STATE}s"):
            continue
        folder = state / Path(words[1]).relative_to(STATE)
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, USERS[words[3]], GROUPS[words[4]])
        folder.chmod(int(words[2], 8))


def _give_one_user(folder: Path) -> None:
    for place in (folder, *folder.rglob("*")):
        os.chown(place, USERS["site-agent"], GROUPS["site-agent"])


def _without_the_owners_of_approvals() -> AbstractContextManager[None]:
    return patched(site_agent.trainer.worker, require_guarded=lambda state: None)


def _site_of(folder: Path) -> Path:
    path = make_site(folder / "hospital", "ahus", columns=slice(0, COLUMNS))
    document = yaml.safe_load(path.read_text())
    document["policy"]["approvers"] = 2
    document["trainer_socket"] = str(folder / "run" / "trainer.sock")
    path.write_text(yaml.safe_dump(document))
    return path


@contextmanager
def trainer_of(hospital: Hospital) -> Iterator[Path]:
    """The trainer's own loop behind its socket, in a folder as systemd makes it; the socket's path."""
    place = Path(str(hospital.trainer_socket))
    place.parent.mkdir()
    os.chown(place.parent, USERS["site-trainer"], GROUPS["site-trainer-socket"])
    place.parent.chmod(0o750)
    is_over = threading.Event()

    def idle() -> None:
        if is_over.is_set():
            raise InterruptedError

    def serve() -> None:
        try:
            connection = _listen(hospital, idle)
        except InterruptedError:
            return
        with connection:
            Worker(hospital, TrainerEnd(connection), after_rounds).serve()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    while not place.is_socket():
        thread.join(0.01)
    os.chown(place, USERS["site-trainer"], GROUPS["site-trainer-socket"])
    try:
        yield place
    finally:
        is_over.set()
        thread.join(30)


def taken_over_agent(weakened: bool) -> bool:
    """Control the agent's user, files and sockets: forge approvals, and send requests to the trainer. Then read rows
    from its answer."""
    with scratch() as folder:
        plan, path = plan_for(**PLAN), _site_of(folder)
        hospital = read_hospital(path)
        state = hospital.state_path
        _give_folders(state)
        (gate_folder(state) / "identity.key").write_bytes(b"secret")
        gate_store_path(state).write_bytes(b"")
        let_others_in(folder)
        let_others_in(path.parent)
        with trainer_of(hospital) as place:
            if weakened:
                _give_one_user(state)
                _give_one_user(place.parent)
            with in_copy(weakened, _without_the_owners_of_approvals):
                found = _driven(folder, state, place, plan)
        if "asked the trainer" not in found:
            assert found == {}, found
            return False
        study, _ = begin_study(hospital, plan, folder / "onlooker")
        rows = np.asarray(study._training.rows.training.features, np.float64)
        update = np.array(found["asked the trainer"])
        return rows_read(inputs_read(plan, update, "input.layer1"), rows) >= ENOUGH_ROWS


def _driven(folder: Path, state: Path, place: Path, plan: Plan) -> dict[str, list[float] | None]:
    (folder / "plan.json").write_bytes(plan.canonical)
    groups = ",".join(str(GROUPS[name]) for name in OF_THE_AGENT)
    words = [str(USERS["site-agent"]), groups, str(state), str(place), str(folder / "plan.json"), str(folder / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.hostile_agent", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float] | None] = json.loads((folder / "out").read_text())
    return found


def another_federation(weakened: bool) -> bool:
    """Have the gate sign a request for a certificate of another federation, which the taken-over agent shows."""
    with scratch() as folder, in_copy(weakened, without_the_memory):
        agents = [Agent(Office.found(folder / name, name).enrol("a")) for name in ("heart", "liver")]
        audit = AuditLog(folder / "gate.sqlite", site="a", now=utc_now)
        for agent in agents:
            gate = SiteCertificates(agent, audit)
            try:
                asyncio.run(gate.look())
            except ConfigurationError:
                return False
        return gate.shown.federation() == "liver"  # the gate names this federation in whatever it signs next


def without_the_memory() -> AbstractContextManager[None]:
    """Every federation that is shown counts as this site's."""
    return patched(SiteCertificates, check=lambda *_: None)


ATTACKS = (
    Attack(name="another-federation", without="the gate's memory of its federation", run=another_federation),
    Attack(
        name="taken-over-agent",
        without="a user for each process, and the look at who could have written an approval",
        run=taken_over_agent,
        needs_root=True,
    ),
)
