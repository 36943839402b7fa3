"""A federation of booted institutions, brought up by following the runbook word for word."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from quickstart.hospitals import dealt_hospitals
from tests.institutions.machines import Machine, wait_until
from tests.institutions.runbook import Commands, File, is_answered, steps

COORDINATOR_FILE: Final = "/etc/global-layers/coordinator.yaml"
HOSPITAL_FILE: Final = "/etc/global-layers/hospital.yaml"
SITE: Final = "/var/lib/global-layers/site"
OFFICE: Final = "coordinator"
HOSPITALS: Final = ("st-mary", "riverside", "northfield")
# The hospital that the runbook speaks of; where it speaks to all, the others do the same under their own names.
EXAMPLE: Final = HOSPITALS[0]
PATIENCE_SECONDS: Final = 240.0


@dataclass
class Federation:
    """The office, its hospitals, and what their people do."""

    machines: Mapping[str, Machine]
    identities: dict[str, str] = field(default_factory=dict)
    study: str = ""

    @property
    def office(self) -> Machine:
        """The coordinator's machine."""
        return self.machines[OFFICE]

    def status(self) -> dict[str, Any]:
        """What `coordinator status --json` says; empty while none answers."""
        words = ("coordinator", "status", "--config", COORDINATOR_FILE, "--json")
        told = self.office.run(*words, user="coordinator", may_fail=True)
        return json.loads(told) if told.startswith("{") else {}

    def rounds_made(self) -> int:
        """How many rounds of the present long study are made; -1 while nothing is known of it."""
        run = self.status().get("run") or {}
        return int(run["rounds_made"]) if run.get("study") == self.study else -1

    def goes_on(self, *, by: int = 2) -> None:
        """Wait until the long study has made further rounds."""
        wait_until(lambda: self.rounds_made() >= 0, "the long study is under way", seconds=PATIENCE_SECONDS)
        goal = self.rounds_made() + by
        wait_until(lambda: self.rounds_made() >= goal, f"round {goal} is made", seconds=PATIENCE_SECONDS)

    def follow(self, heading: str, *, everywhere: bool = False, only: str = "") -> None:
        """Do what a section of the runbook says, and hold every answer against what it promises.

        Args:
            heading: the section.
            everywhere: what the example hospital does, the others do too.
            only: of the section, what is done at this place.
        """
        for step in steps(heading):
            if step.where == "the new office" or (only and step.where != only):
                continue
            for machine in self._at(step.where, everywhere=everywhere):
                if isinstance(step, File):
                    self._write(step, machine)
                else:
                    self._type(step, machine)

    def bring_tables(self) -> None:
        """Each hospital's data manager has a table and its contract ready."""
        with tempfile.TemporaryDirectory() as folder:
            for name, data in zip(HOSPITALS, dealt_hospitals(len(HOSPITALS), Path(folder), seed=0), strict=True):
                self.machines[name].place("/srv/patients.csv", data.table.read_bytes())
                self.machines[name].place("/srv/contract.yaml", data.contract.read_bytes())

    def begin_long_study(self, name: str) -> None:
        """A further study that goes on for as long as the tests disturb it."""
        self.study = name
        plan = yaml.safe_load(self.office.run("cat", "/etc/global-layers/plan.yaml"))
        plan |= {"study": name, "snapshots": {"every_rounds": 5, "every_seconds": None}}
        plan["schedule"] |= {"epochs": 20_000}
        content = yaml.safe_dump(plan, sort_keys=False).encode()
        self.office.place(f"/etc/global-layers/{name}.yaml", content)
        for hospital in HOSPITALS:
            self.machines[hospital].place("/srv/further.yaml", content)
            words = ("approve", "--config", HOSPITAL_FILE, "--plan", "/srv/further.yaml", "--by", "A. Jones")
            self.machines[hospital].run("site-agent", *words, user="site-agent")
        configuration = yaml.safe_load(self.office.run("cat", COORDINATOR_FILE)) | {"plans": [f"{name}.yaml"]}
        self.office.place(COORDINATOR_FILE, yaml.safe_dump(configuration, sort_keys=False).encode())
        self.follow("Another study")
        self.goes_on(by=1)

    def _at(self, where: str, *, everywhere: bool) -> list[Machine]:
        if where == "the office":
            return [self.office]
        if where == "each hospital" or (where == EXAMPLE and everywhere):
            return [self.machines[name] for name in HOSPITALS]
        return [self.machines[where]]

    def _write(self, step: File, machine: Machine) -> None:
        content = self._filled(step.content, machine).encode()
        machine.place(step.path, content)
        if step.path.endswith("plan.yaml"):  # the office sends it to all
            for name in HOSPITALS:
                self.machines[name].place("/srv/plan.yaml", content, mode="0644")

    def _type(self, step: Commands, machine: Machine) -> None:
        said = []
        for line in step.lines:
            words = self._filled(line, machine)
            if " pki approve " in words:
                self._await_request(words.split()[6])
            folder = "/srv/packages" if ".deb" in words else "/srv"
            said.append(machine.run("sh", "-c", f"cd {folder} && {words}", may_fail=bool(step.how), seconds=600))
            self._afterwards(words, said[-1], machine)
        answer = self._filled(step.answer, machine)
        text = "\n".join(part for part in said if part)
        if answer and not is_answered(answer, text):
            raise AssertionError(f"{machine.name}: {step.lines}\nThe runbook promises:\n{answer}\nIt said:\n{text}")

    def _afterwards(self, words: str, said: str, machine: Machine) -> None:
        """What people do between the lines: send an invitation, read a fingerprint aloud."""
        if " pki invite " in words:
            name, paper = words.split()[6], words.split()[-1]
            self.machines[name].place(f"/srv/{name}.invitation", machine.run("cat", paper).encode(), mode="0600")
        if " site-agent identity " in words:
            self.identities[machine.name] = said.splitlines()[-1]

    def _await_request(self, name: str) -> None:
        machine = self.machines[name]
        wait_until(
            lambda: "enrolment_awaits_approval" in machine.journal("site-agent"),
            f"{name} asks for its certificate",
            seconds=PATIENCE_SECONDS,
        )

    def _filled(self, text: str, machine: Machine) -> str:
        """The runbook's words with what differs: real fingerprints, and the hospital's own name."""
        for name, identity in self.identities.items():
            text = text.replace(f"fingerprint-of-{name}", identity)
        return text if machine.name == OFFICE else text.replace(EXAMPLE, machine.name)
