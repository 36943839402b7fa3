"""A federation of booted institutions, brought up with the commands that the runbook has."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from quickstart.hospitals import HospitalData, dealt_hospitals
from quickstart.plans import plan_of
from tests.institutions.machines import Machine, wait_until

AUTHORITY: Final = "/var/lib/global-layers/coordinator/authority"
COORDINATOR_FILE: Final = "/etc/global-layers/coordinator.yaml"
HOSPITAL_FILE: Final = "/etc/global-layers/hospital.yaml"
SITE: Final = "/var/lib/global-layers/site"
PATIENTS: Final = "/var/lib/global-layers/patients"
HOSPITALS: Final = ("hospital-1", "hospital-2", "hospital-3")
# The first run ends by itself; the second one goes on for as long as the tests disturb it.
ROUNDS: Final = {"first": 6, "long": 10_000}
ENROLMENT_SECONDS: Final = 60.0
ROUND_SECONDS: Final = 90.0


@dataclass
class Federation:
    """The coordinator, its hospitals, and what their people do."""

    machines: Mapping[str, Machine]
    identities: dict[str, str] = field(default_factory=dict)

    @property
    def coordinator(self) -> Machine:
        """The office's machine."""
        return self.machines["coordinator"]

    def hospital(self, number: int) -> Machine:
        """One of the hospitals, counted from 1."""
        return self.machines[HOSPITALS[number - 1]]

    def status(self) -> dict[str, Any]:
        """What `coordinator status --json` says; empty while none answers."""
        words = ("coordinator", "status", "--config", COORDINATOR_FILE, "--json")
        told = self.coordinator.run(*words, user="coordinator", may_fail=True)
        return json.loads(told) if told.startswith("{") else {}

    def rounds_made(self, study: str) -> int:
        """How many rounds of a study are made; -1 while nothing is known of it."""
        run = self.status().get("run") or {}
        return int(run["rounds_made"]) if run.get("study") == study else -1

    def goes_on(self, *, by: int = 2) -> float:
        """Wait until the long study has made further rounds; how many seconds that took."""
        before = 0

        def has_begun() -> bool:
            nonlocal before
            before = self.rounds_made("long")
            return before >= 0

        waited = wait_until(has_begun, "the long study is under way", seconds=ROUND_SECONDS)
        further = wait_until(
            lambda: self.rounds_made("long") >= before + by, f"{by} rounds after {before}", seconds=ROUND_SECONDS
        )
        return waited + further

    def make_authority(self) -> None:
        """The office makes the authority and invites every hospital."""
        office = self.coordinator
        office.place(
            "/root/passphrase", b"correct horse battery staple\n", owner="coordinator:coordinator", mode="0600"
        )
        office.run("mv", "/root/passphrase", "/var/lib/global-layers/coordinator/passphrase")
        office.run(
            "pki", "init", "--federation", "institutions", "--address", "coordinator:8443",
            "--enrolment-address", "coordinator:8444", "--directory", AUTHORITY,
            "--passphrase-file", "/var/lib/global-layers/coordinator/passphrase", user="coordinator",
        )  # fmt: skip
        for name in HOSPITALS:
            paper = f"/var/lib/global-layers/coordinator/{name}.invitation"
            office.run("pki", "invite", name, "--directory", AUTHORITY, "--output", paper, user="coordinator")
            invitation = office.run("cat", paper).encode()
            self.machines[name].place(
                f"{SITE}/{name}.invitation", invitation, owner="site-agent:global-layers", mode="0600"
            )

    def furnish_hospitals(self) -> list[HospitalData]:
        """Each hospital's own people put the one file, the table and its contract in place."""
        with tempfile.TemporaryDirectory() as folder:
            hospitals = dealt_hospitals(len(HOSPITALS), Path(folder), seed=0)
            for data in hospitals:
                machine = self.machines[data.name]
                machine.place(HOSPITAL_FILE, yaml.safe_dump(_hospital(data.name), sort_keys=False).encode())
                for name, path in (("patients.csv", data.table), ("contract.yaml", data.contract)):
                    owner = "site-trainer:global-layers"
                    machine.place(f"{PATIENTS}/{name}", path.read_bytes(), owner=owner, mode="0600")
                machine.run("site-agent", "check", "--config", HOSPITAL_FILE, user="site-trainer")
                told = machine.run("site-agent", "identity", "--config", HOSPITAL_FILE, user="site-agent")
                self.identities[data.name] = told.splitlines()[-1]
        return hospitals

    def announce(self, hospitals: list[HospitalData]) -> None:
        """The office writes the plans, and every hospital agrees to them."""
        plans = {study: self._plan(study, hospitals) for study in ROUNDS}
        for study, plan in plans.items():
            content = yaml.safe_dump(plan, sort_keys=False).encode()
            self.coordinator.place(f"/etc/global-layers/{study}.yaml", content)
            for name in HOSPITALS:
                machine = self.machines[name]
                machine.place(f"/etc/global-layers/{study}.yaml", content)
                words = ("--plan", f"/etc/global-layers/{study}.yaml", "--by", "A. Jones")
                machine.run("site-agent", "approve", "--config", HOSPITAL_FILE, *words, user="site-agent")
        configuration = {
            "listen": "10.77.0.1:8443",
            "enrolment_listen": "10.77.0.1:8444",
            "authority": AUTHORITY,
            "state": "/var/lib/global-layers/coordinator/state",
            "plans": [f"{study}.yaml" for study in ROUNDS],
        }
        self.coordinator.place(COORDINATOR_FILE, yaml.safe_dump(configuration, sort_keys=False).encode())

    def start(self) -> None:
        """Start every service, and approve every hospital by the fingerprint that was read aloud."""
        self.coordinator.run("systemctl", "enable", "--now", "coordinator")
        for name in HOSPITALS:
            self.machines[name].run("systemctl", "enable", "site-trainer", "site-agent")
            self.machines[name].run("systemctl", "start", "--no-block", "site-trainer", "site-agent")
        for name in HOSPITALS:
            machine = self.machines[name]
            wait_until(
                lambda machine=machine: "enrolment_awaits_approval" in machine.journal("site-agent"),  # type: ignore[misc]
                f"{name} asks for its certificate",
                seconds=ENROLMENT_SECONDS,
            )
            words = ("--directory", AUTHORITY, "--fingerprint", self.identities[name])
            self.coordinator.run("pki", "approve", name, *words, user="coordinator")

    def _plan(self, study: str, hospitals: list[HospitalData]) -> dict[str, Any]:
        return plan_of("global-layers", hospitals, latent=8) | {
            "study": study,
            "schedule": {"aggregate": "every-epoch", "epochs": ROUNDS[study], "batches_per_epoch": 2},
            "seed": 0,
            "sites": [{"name": name, "identity": identity} for name, identity in sorted(self.identities.items())],
            "quorum": len(HOSPITALS),
            "secure_aggregation": "required",
            "snapshots": {"every_rounds": 5, "every_seconds": None},
        }


def _hospital(name: str) -> dict[str, Any]:
    """The one file that a hospital's operator edits."""
    return {
        "site": name,
        "invitation": f"{SITE}/{name}.invitation",
        "state": SITE,
        "policy": {
            "methods": ["global-layers"],
            "secure_aggregation": "required",
            "smallest_sites": 3,
            "largest_rounds": 100_000,
            "largest_megabytes": 100_000.0,
            "largest_clipping_range": 8.0,
        },
        "data": {
            "table": f"{PATIENTS}/patients.csv",
            "contract": f"{PATIENTS}/contract.yaml",
            "split": {"seed": 0, "test_share": 0.33, "validation_share": 0.1},
        },
        "training": {"siloed_baseline": False, "simple_models": False},
        "trainer_socket": "/run/site-trainer/trainer.sock",
    }
