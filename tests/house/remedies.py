"""The remedy is right: bring a fault about, do what the program's message says, and the program works after.

Usage: python -m tests.house.remedies [NAME ...]

The commands are those that the message itself has between backticks. Only words in capitals are filled in, and options
that it leaves out: the configuration, and what a person decides. The exit status is 0 only if all figures are equal.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import yaml

from host.secret_files import write_secret
from tests.doctor.conftest import Scene, scene_in
from tests.rehearsal.programs import PROGRAMS, own_environment, running, wait_until
from tests.rehearsal.study import made_up_identities, plan_document

# Programs that go on until they are stopped, with the events by which they have begun.
GOING_ON: Final = {"coordinator start": "coordinator_listening", "site-agent join": "approval_awaited|study_prepared"}
CONFIGURATION: Final = {"pki": "--directory authority", "coordinator": "--config coordinator.yaml",
                        "site-agent": "--config hospital/hospital.yaml"}  # fmt: skip
COMMAND: Final = re.compile(r"`((?:pki|coordinator|site-agent|chmod|df|fuser|ss|openssl) [^`]*)`")
# These commands end with an error, because there is one to be seen.
SHOWN: Final = ("NotAfter", "The digest of this examination")
PATIENCE_SECONDS: Final = 60.0
NETWORK: Final = """
method: {name: global-layers}
architecture: {name: global-layers-network, latent: 8, gate: false, input_normalisation: false}
schedule: {aggregate: every-epoch, epochs: 3, batches_per_epoch: 2}
optimiser: {name: adamw, learning_rate: 0.001, weight_decay: 0.0001}
"""


@dataclass
class Trial:
    """A federation in a folder, with the coordinator's files in it and those of the hospital a in `hospital`."""

    scene: Scene
    stack: ExitStack
    typed: list[str] = field(default_factory=list)

    def __truediv__(self, path: str) -> Path:
        return self.scene.place.folder / path

    def type(self, command: str, folder: str = ".") -> tuple[int, str]:
        """Type a command in a folder of the federation. Return its exit status, and all that it printed."""
        option, _, path = CONFIGURATION.get(command.split()[0], "").partition(" ")
        words = command if option in command else f"{command} {option} {self / path}"
        event = next((event for begin, event in GOING_ON.items() if command.startswith(begin)), "")
        status, text = self.begin(words, event) if event else self._finish(words, folder)
        self.typed.append(f"{words}: {status}\n{text[-900:]}")
        return status, text

    def begin(self, words: str, event: str) -> tuple[int, str]:
        """Start a program that goes on. Return 0 when it has begun."""
        log = Path(tempfile.mkstemp(dir=self / ".", suffix=".log")[1])
        process = self.stack.enter_context(running(log, *shlex.split(words)))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (begun := re.search(event, log.read_text())) and time.monotonic() < deadline:
            if process.poll() is not None:
                break
            time.sleep(0.05)
        return (0 if begun else process.poll() or 1), log.read_text()

    def _finish(self, words: str, folder: str) -> tuple[int, str]:
        path = f"{PROGRAMS}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", words], cwd=self / folder, env=own_environment() | {"PATH": path}, text=True, check=False,
            timeout=PATIENCE_SECONDS, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout


Act = Callable[[Trial], object]
Do = Callable[[Trial, str], object]


@dataclass(frozen=True)
class Fault:
    """The command that reports a fault, and how that comes about. `first` and `then` are what the message asks of a
    person before and after its commands, and get what was printed. `fills` are words for those in capitals, or options.
    `folder` is where the message says. `again` returns the command that works after, from what was printed, if that is
    another one."""

    command: str
    cause: Act = lambda _: None
    fills: Mapping[str, str] = field(default_factory=dict)
    first: Do | None = None
    then: Do = lambda _, __: None
    folder: str = "."
    again: Callable[[str], str] | None = None


def outcome(fault: Fault, folder: Path) -> tuple[bool, bool, list[str]]:
    """Whether a remedy was tried, whether the program works after, and what was typed."""
    with ExitStack() as stack:
        trial = Trial(scene_in(folder), stack)
        _away(trial)
        _correct_plan(trial, NETWORK)
        _written("- fedavg", "- global-layers")(trial)
        fault.cause(trial)
        status, told = trial.type(fault.command)
        commands, printed = COMMAND.findall(told), ""
        if status == 0 or not (commands or fault.first):
            return False, False, trial.typed
        if fault.first:
            fault.first(trial, told)
        for command in commands:
            digest = re.findall("examination is (.{16})", printed)
            for old, new in fault.fills.items():
                command = re.sub(old, new.format(digest=digest and digest[-1], office=trial / "."), command)
            status, told = trial.type(command, fault.folder)
            if status and not any(shown in told for shown in SHOWN):
                return False, False, trial.typed
            printed += told
        fault.then(trial, printed)
        if fault.command in commands:  # it runs
            return True, True, trial.typed
        return True, trial.type(fault.again(printed) if fault.again else fault.command)[0] == 0, trial.typed


def _together(*acts: Act) -> Act:
    return lambda trial: [act(trial) for act in acts]


def _mode(path: str, bits: int) -> Act:
    return lambda trial: (trial / path).chmod(bits)


def _typed(command: str) -> Act:

    def act(trial: Trial) -> None:
        status, text = trial.type(command, "hospital")
        assert status == 0, text

    return act


def _written(old: str, new: str) -> Act:
    def act(trial: Trial) -> None:
        path = trial / "hospital/hospital.yaml"
        path.write_text(path.read_text().replace(old, new))

    return act


def _expired(trial: Trial) -> None:
    trial.scene.place.office.authority.renew_coordinator(datetime.now(UTC) - timedelta(days=100))


def _authority_expired(trial: Trial) -> None:
    _back(trial)
    trial.scene.place.office.authority.renew_issuing("correct horse battery", datetime.now(UTC) - timedelta(days=4000))
    write_secret(trial / "passphrase", b"correct horse battery\n", replace=False)


def _away(trial: Trial, _: str = "") -> None:
    (trial / "authority/root.key.sealed").rename(trial / "root.key.sealed")


def _back(trial: Trial) -> None:
    (trial / "root.key.sealed").rename(trial / "authority/root.key.sealed")


def _take_address(trial: Trial) -> None:
    trial.begin(f"python -u -m http.server {trial.scene.place.port}", "Serving")


def _stop_printed(trial: Trial, printed: str) -> None:
    numbers = re.findall(rf":{trial.scene.place.port} .*pid=(\d+)|lock: +(\d+)$", printed, re.MULTILINE)
    (number,) = {int("".join(found)) for found in numbers}
    os.kill(number, signal.SIGTERM)
    wait_until(lambda: "Z" in Path(f"/proc/{number}/stat").read_text().rpartition(")")[2])


def _correct_plan(trial: Trial, printed: str) -> None:
    plan = trial / "plan.yaml"
    plan.write_text(yaml.safe_dump(yaml.safe_load(plan.read_text()) | yaml.safe_load(printed)))


def _damage_approval(trial: Trial) -> None:
    next((trial / "hospital/state/approvals").glob("*.json")).write_text("{")


def _secret_open(trial: Trial) -> None:
    models = trial / "hospital/state/models"
    models.mkdir(mode=0o700)
    (models / "site.secret").write_bytes(bytes(32))


def _disk(trial: Trial) -> None:
    (trial / "state").mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2G,mode=0700", "tmpfs", trial / "state"], check=True)
    trial.stack.callback(lambda: subprocess.run(["umount", "--lazy", trial / "state"], check=True))


def _full(trial: Trial) -> None:
    subprocess.run(["mount", "-o", "remount,size=1M", trial / "state"], check=True)
    with suppress(OSError):
        (trial / "state/fill").write_bytes(bytes(1 << 20))


def _free(trial: Trial, _: str) -> None:
    subprocess.run(["mount", "-o", "remount,size=2G", trial / "state"], check=True)


STARTED: Final = _typed("coordinator start")
JOINED: Final = _together(STARTED, _typed("site-agent join"))
WITH_PLAN: Final = "site-agent review --plan {office}/plan.yaml"
APPROVE: Final = "site-agent approve --plan {office}/plan.yaml --by A --yes"
APPROVED: Final = _typed(APPROVE.format(office=".."))
TRAINER: Final = "python -m site_agent.trainer_process --config hospital/hospital.yaml"
TLS_KEY: Final = "hospital/state/agent/tls.key"
WARNED: Final = _written(": tell", ": stop")
APPROVES: Final = {"site-agent approve": APPROVE}
ACCEPTS: Final = {"accept$": "accept --by A --digest {digest}", "site-agent review": WITH_PLAN}
PASSPHRASE: Final = {"FILE": "{office}/passphrase"}
WITHDRAW: Final = (
    "(until grep -q study_prepared log; do sleep 0.1; done; site-agent withdraw --config hospital/hospital.yaml --by A)"
    " & site-agent join --config hospital/hospital.yaml 2>&1 | tee log; exit ${PIPESTATUS[0]}"
)
FAULTS: Final = {
    "identity-key-open": Fault("site-agent identity", _mode("hospital/state/gate/identity.key", 0o644)),
    "tls-key-open": Fault("site-agent doctor --side agent", _together(STARTED, _mode(TLS_KEY, 0o644))),
    "issuing-key-open": Fault("pki renew", _mode("authority/issuing.key", 0o640)),
    "gate-folder-open": Fault("site-agent join", _together(STARTED, _mode("hospital/state/gate", 0o770))),
    "site-secret-open": Fault("site-agent join", _together(APPROVED, STARTED, _secret_open)),
    "certificate-expired": Fault("coordinator doctor", _together(STARTED, _expired)),
    "certificate-expired-for-a-site": Fault("site-agent doctor --side agent", _together(STARTED, _expired)),
    "authority-expired": Fault("coordinator doctor", _together(STARTED, _authority_expired), PASSPHRASE, then=_away),
    "authority-expired-at-a-renewal": Fault("pki renew", _authority_expired, PASSPHRASE),
    "root-key-here": Fault("coordinator doctor", _together(STARTED, _back), first=_away),
    "second-coordinator": Fault("coordinator start", STARTED, folder="state", then=_stop_printed),
    "second-agent": Fault("site-agent join", JOINED, folder="hospital/state/gate", then=_stop_printed),
    "address-taken": Fault("coordinator start", _take_address, then=_stop_printed),
    "no-coordinator": Fault("coordinator doctor"),
    "no-agent": Fault("site-agent status", STARTED),
    "trainer-alone": Fault(TRAINER, STARTED, again=lambda _: "site-agent status"),
    "member-invited": Fault("pki invite a --output a.invitation"),
    "other-identity": Fault(
        "coordinator check", lambda trial: _correct_plan(trial, yaml.safe_dump(plan_document(made_up_identities()))),
        then=_correct_plan,
    ),
    "no-plan": Fault("site-agent review", STARTED),
    "no-terminal": Fault(
        "site-agent approve --by A --plan plan.yaml", fills={"site-agent review": WITH_PLAN},
        again=lambda _: "site-agent approve --by A --plan plan.yaml --yes",
    ),
    "approval-damaged": Fault(
        "site-agent join", _together(APPROVED, STARTED, _damage_approval), APPROVES,
        first=lambda _, told: Path(re.findall("the file (.*) is damaged", told)[0]).unlink(),
    ),
    "withdrawn": Fault(WITHDRAW, _together(APPROVED, STARTED), APPROVES, again=lambda _: "site-agent join"),
    "unaccepted": Fault("site-agent data check", WARNED, {"NAME": "A"}),
    "unchecked": Fault("site-agent doctor --side trainer", WARNED, ACCEPTS),
    "other-digest": Fault(
        "site-agent data accept --by A --digest 0123456789abcdef",
        again=lambda text: f"site-agent data accept --by A --digest {re.findall('examination is (.{16})', text)[0]}",
    ),
    "wrong-option": Fault("coordinator check --confg x", again=lambda text: re.findall("Example: (.*)", text)[0]),
}  # fmt: skip
if os.geteuid() == 0:
    FAULTS["disk-full"] = Fault("coordinator start", _together(_disk, _full), first=_free)
    FAULTS["disk-full-for-a-doctor"] = Fault("coordinator doctor", _together(_disk, STARTED, _full), first=_free)


def _in_folder(name: str) -> tuple[bool, bool, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        return outcome(FAULTS[name], Path(folder))


def main(names: Iterable[str]) -> int:
    """Try all faults or those with these names, print a line for each, and return the exit status."""
    chosen, tried, works = list(names) or list(FAULTS), 0, 0
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for name, (is_tried, is_working, words) in zip(chosen, threads.map(_in_folder, chosen), strict=True):
            tried, works = tried + is_tried, works + is_working
            print(
                f"{'works' if is_working else 'FAILS'} {name}", *([] if is_working else words), sep="\n  ", flush=True
            )
    print(f"faults={len(chosen)} remedies_tried={tried} working_after={works}")
    return 0 if len(chosen) == tried == works else 1


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
