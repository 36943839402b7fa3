"""A federation of booted institutions, created by the exact words of the runbook."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from quickstart.hospitals import dealt_hospitals
from tests.institutions.machines import Institutions, Machine, wait_until
from tests.institutions.runbook import Commands, File, is_answered, steps

COORDINATOR_FILE: Final = "/etc/global-layers/coordinator.yaml"
HOSPITAL_FILE: Final = "/etc/global-layers/hospital.yaml"
SITE: Final = "/var/lib/global-layers/site"
COORDINATOR_STATE: Final = "/var/lib/global-layers/coordinator/state"
TABLE: Final = "/var/lib/global-layers/patients/patients.csv"
OFFICE: Final = "coordinator"
NEW_OFFICE: Final = "new-office"
OFFICE_NAME: Final = "coordinator.example.org"
REGISTRY: Final = "registry"
# The runbook's words for commands that need not succeed.
MAY_FAIL: Final = ("refused", "whatever it says")
HOSPITALS: Final = ("st-mary", "riverside", "northfield")
# The hospital that the runbook addresses; where it addresses all, the others do the same under their own names.
EXAMPLE: Final = HOSPITALS[0]
# A hospital that begins with a bare Debian and does only the necessary steps.
HURRIED: Final = HOSPITALS[2]
LOOKING: Final = "to look"


@dataclass
class Federation:
    """The office, its hospitals, and what their people do.

    Attributes:
        identities: fingerprints that were read aloud, by hospital.
        safe: the things that the office stores away from its computer, by name.
        typed, edited: how many commands and files it took, looking left aside, by machine.
    """

    institutions: Institutions
    identities: dict[str, str] = field(default_factory=dict)
    safe: dict[str, bytes] = field(default_factory=dict)
    study: str = ""
    office_name: str = OFFICE
    typed: Counter[str] = field(default_factory=Counter)
    edited: Counter[str] = field(default_factory=Counter)

    @property
    def machines(self) -> dict[str, Machine]:
        """All that run, by name."""
        return self.institutions.machines

    @property
    def office(self) -> Machine:
        """The coordinator's machine."""
        return self.machines[self.office_name]

    @property
    def hospitals(self) -> list[Machine]:
        """Those of the hospitals."""
        return [self.machines[name] for name in HOSPITALS]

    def status(self) -> dict[str, Any]:
        """Return the status from the coordinator's socket; empty while nobody answers. It is read without a process,
        because it is read often and the two processors have other work."""
        try:
            folder = os.open(f"{self.office.root}{COORDINATOR_STATE}", os.O_PATH)
            try:
                with socket.socket(socket.AF_UNIX) as asked:
                    asked.connect(f"/proc/self/fd/{folder}/control.socket")
                    asked.shutdown(socket.SHUT_WR)
                    told = asked.makefile().read()
            finally:
                os.close(folder)
        except OSError:
            return {}
        return json.loads(told) if told else {}

    def rounds_made(self) -> int:
        """How many rounds of the present long study are made; -1 while nothing is known of it."""
        run = self.status().get("run") or {}
        return int(run["rounds_made"]) if run.get("study") == self.study else -1

    def goes_on(self, *, by: int = 2) -> None:
        """Wait until the long study has made further rounds."""
        wait_until(lambda: self.rounds_made() >= 0, "the long study is under way")
        goal = self.rounds_made() + by
        wait_until(lambda: self.rounds_made() >= goal, f"round {goal} is made")

    def follow(self, heading: str, *, everywhere: bool = False, only: str = "", at: Sequence[str] = ()) -> None:
        """Carry out a section of the runbook, and compare every output with the page. `everywhere`: what the example
        hospital does, the others do too. `only` what is done there, `at` these machines."""
        for step in steps(heading):
            if not only or step.where == only:
                machines = [each for each in self._at(step.where, everywhere=everywhere) if not at or each.name in at]
                together(lambda machine: self._do(step, machine), machines)  # noqa: B023

    def bring_tables(self) -> None:
        """Each hospital's data manager has a table and its contract ready."""
        with tempfile.TemporaryDirectory() as folder:
            for name, data in zip(HOSPITALS, dealt_hospitals(len(HOSPITALS), Path(folder), seed=0), strict=True):
                self.safe[f"{name}: patients.csv"] = data.table.read_bytes()
                # Their columns differ; the outcome is the concept that a statistics plan asks for.
                contract = yaml.safe_load(data.contract.read_bytes())
                contract["columns"][-1] |= {"concept": "diagnosis"}
                self.safe[f"{name}: contract.yaml"] = yaml.safe_dump(contract, sort_keys=False).encode()
                self.bring(name, "patients.csv", "contract.yaml")

    def bring(self, name: str, *files: str) -> None:
        """Put what is kept elsewhere within a hospital's reach."""
        for file in files:
            self.machines[name].place(f"/srv/{file}", self.safe[f"{name}: {file}"], mode="0600")

    def call_office(self, machine: Machine) -> None:
        """The office's name leads to this machine from now on."""
        addresses = {other.name: other.address for other in self.machines.values()}
        hosts = self.institutions.hosts(addresses, {machine.name: OFFICE_NAME})
        together(lambda each: each.place("/etc/hosts", hosts.encode()), [*self.hospitals, machine])

    def begin_long_study(self, name: str) -> None:
        """A further study that goes on for as long as the tests disturb it."""
        plan = yaml.safe_load(self.office.run("cat", "/etc/global-layers/plan.yaml"))
        plan |= {"study": name, "timing": {"save_every_rounds": 5, "save_every_seconds": None}}
        plan["schedule"] |= {"epochs": 20_000}
        self.begin_study(plan)
        self.goes_on(by=1)

    def begin_study(self, plan: dict[str, Any]) -> None:
        """Announce a further study, which a person at each hospital has approved before."""
        self.agree(plan)
        self.follow("Another study")

    def agree(self, plan: dict[str, Any]) -> None:
        """A person at each hospital approves a study, which the office has ready."""
        self.study, content = plan["study"], yaml.safe_dump(plan, sort_keys=False).encode()
        path = f"/srv/{self.study}.yaml"

        def approve(hospital: Machine) -> None:
            hospital.place(path, content)
            words = ("--plan", path, "--by", "A. Jones", "--beside", "all", "--yes")
            hospital.run("site-agent", "approve", "--config", HOSPITAL_FILE, *words)

        self.office.place(f"/etc/global-layers/{self.study}.yaml", content)
        together(approve, self.hospitals)
        self.office.run("sed", "-i", f"s/^plans: .*/plans: [{self.study}.yaml]/", COORDINATOR_FILE)

    def _at(self, where: str, *, everywhere: bool) -> list[Machine]:
        if where == "the office":
            return [self.office]
        if where == "each hospital" or (where == EXAMPLE and everywhere):
            return self.hospitals
        return [self.machines[where.replace(" ", "-").removeprefix("the-")]]

    def _do(self, step: File | Commands, machine: Machine) -> None:
        if isinstance(step, File):
            machine.place(step.path, self._filled(step.content, machine).encode())
            self.edited[machine.name] += 1
        elif step.how != LOOKING:
            self._type(step, machine)
            self.typed[machine.name] += len(step.lines)
        elif machine.name != HURRIED:
            self._type(step, machine)

    def _type(self, step: Commands, machine: Machine) -> None:
        said = []
        for line in step.lines:
            if " pki approve " in line:
                self._listen(self.machines[line.split()[6]], line)
            words = self._filled(line, machine)
            if re.search("(^| )site-agent (approve|review) ", words):
                self.await_event(machine, "approval_awaited", words)
            if "site-agent approve " in words:
                words += " --yes"  # a person answers at a terminal, and a container has none
            folder = "/srv/packages" if ".deb" in words else "/srv"
            said.append(machine.run("sh", "-c", f"cd {folder} && {words}", may_fail=step.how in MAY_FAIL, seconds=600))
            self._afterwards(words, said[-1], machine)
        answer = self._filled(step.answer, machine)
        text = "\n".join(part for part in said if part)
        if answer and not is_answered(answer, text):
            raise AssertionError(f"{machine.name}: {step.lines}\nThe runbook promises:\n{answer}\nIt said:\n{text}")

    def _afterwards(self, words: str, said: str, machine: Machine) -> None:
        """Do what people do between the lines: send an invitation, read out a fingerprint, take the root key away."""
        if " pki init " in words and REGISTRY not in words:
            sealed = f"{words.split()[-1]}/root.key.sealed"
            self.safe["root.key.sealed"] = machine.run("cat", sealed).encode()
            self.safe["passphrase"] = re.findall("shown only once: (.*)", said)[0].encode()
            machine.run("rm", sealed)
        if " pki invite " in words:
            name, paper = words.split()[6], words.split()[-1]
            self.machines[name].place(f"/srv/{name}.invitation", machine.run("cat", paper).encode(), mode="0600")
        if " site-agent identity " in words:
            self.identities[machine.name] = said.splitlines()[-1]

    def _listen(self, machine: Machine, words: str) -> None:
        """A hospital reads its fingerprint, which its journal tells, over the telephone."""
        told = json.loads(self.await_event(machine, "enrolment_awaits_approval", words))["identity"]
        assert self.identities.setdefault(machine.name, told) == told

    def await_event(self, machine: Machine, event: str, typed: str = "") -> str:
        """Let a person read the journal before typing. Return the line that reports it."""
        unit = f"site-gate@{REGISTRY}" if REGISTRY in typed else "site-gate"
        words = ("journalctl", "--no-pager", "--output", "cat", "--grep", event)

        def told() -> str:
            # Of the service as it runs now: an earlier start may have awaited the same.
            started = machine.property(unit, "InvocationID")
            return machine.run(*words, f"_SYSTEMD_INVOCATION_ID={started}", may_fail=True) if started else ""

        wait_until(lambda: event in told(), f"{event} at {machine.name}")
        return told().splitlines()[-1]

    def _filled(self, text: str, machine: Machine) -> str:
        """The runbook's words with what differs: real fingerprints, and the hospital's own name."""
        text = text.replace(EXAMPLE, machine.name) if machine.name in HOSPITALS else text
        for name, identity in self.identities.items():
            text = text.replace(f"fingerprint-of-{name}", identity)
        return text


def together(act: Callable[[Machine], None], machines: Iterable[Machine]) -> None:
    """Let several people act at once, each at a machine. Raise the first failure."""
    with ThreadPoolExecutor() as people:
        list(people.map(act, machines))
