"""Prepares a federation on this computer with the real commands, with mutual TLS on loopback."""

from __future__ import annotations

import string
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import yaml

from protos.plan.methods import METHOD_NAMES
from protos.plan.plan import plan_from_yaml
from quickstart.hospitals import HospitalData
from quickstart.plans import Question, Study, plan_of, studies_of
from quickstart.ports import free_port

PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The settings of a rehearsal.

    `methods` are as people write them and run one after another; without any, the hospitals answer the question of odds
    ratios. Networks have the latent size.
    """

    folder: Path
    hospitals: list[HospitalData]
    methods: tuple[str, ...]
    rounds: int
    seed: int
    is_masked: bool
    latent: int = 128
    address: str = field(default_factory=lambda: f"localhost:{free_port()}")
    enrolment: str = field(default_factory=lambda: f"localhost:{free_port()}")

    @cached_property
    def studies(self) -> tuple[Study, ...]:
        """Return each chosen method as a study with its own plan.

        Raises:
            ConfigurationError: there is no such method.
        """
        question = Study(label="odds ratios", name="quickstart-odds-ratios", choice=Question())
        return studies_of(self.methods) if self.methods else (question,)


def prepare(rehearsal: Rehearsal) -> None:
    """Create the certificate authority, invitations, keys, configurations, plans and approvals, as people would.

    Raises:
        ConfigurationError: a method cannot run with these settings; nothing was created.
    """
    _check_plans(rehearsal)
    folder = rehearsal.folder
    authority = folder / "authority"
    command(
        "pki", "init", "--federation", "quickstart", "--directory", authority,
        "--address", rehearsal.address, "--enrolment-address", rehearsal.enrolment,
    )  # fmt: skip
    identities = {}
    for hospital in rehearsal.hospitals:
        home = folder / hospital.name
        home.mkdir()
        (home / "hospital.yaml").write_text(yaml.safe_dump(_hospital(rehearsal, hospital), sort_keys=False))
        identities[hospital.name] = command("site-agent", "identity", "--config", home / "hospital.yaml").strip()
        command(
            "pki", "invite", hospital.name, "--directory", authority, "--pre-approved",
            "--output", home / "invitation.json",
        )  # fmt: skip
    plans = []
    for number, study in enumerate(rehearsal.studies, start=1):
        plan = folder / f"plan-{number}-{study.name}.yaml"
        plan.write_text(yaml.safe_dump(_plan(rehearsal, study, identities), sort_keys=False))
        plans.append(plan.name)
        for hospital in rehearsal.hospitals:
            config = folder / hospital.name / "hospital.yaml"
            words = ("--by", "the quickstart", "--beside", "all", "--yes")  # all data are public
            command("site-agent", "approve", "--config", config, "--plan", plan, *words)
    configuration = {
        "listen": rehearsal.address,
        "enrolment_listen": rehearsal.enrolment,
        "authority": "authority",
        "state": "coordinator",
        "plans": plans,
    }
    (folder / "coordinator.yaml").write_text(yaml.safe_dump(configuration, sort_keys=False))


def _check_plans(rehearsal: Rehearsal) -> None:
    """Check all plans with made-up identities, before an authority is created."""
    letters = string.ascii_lowercase
    names = [hospital.name for hospital in rehearsal.hospitals]
    identities = {name: "-".join([f"aaa{letters[number]}"] * 8) for number, name in enumerate(names)}
    for study in rehearsal.studies:
        raw = yaml.safe_dump(_plan(rehearsal, study, identities)).encode()
        plan_from_yaml(raw, source=f"the plan of {study.label}", consequence="No program was started.")


def command(*words: object) -> str:
    """Run one of our programs to its end and return its output."""
    program, *arguments = map(str, words)
    done = subprocess.run([PROGRAMS / program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)  # the program's own error
        sys.exit(done.returncode)
    return done.stdout


def _hospital(rehearsal: Rehearsal, hospital: HospitalData) -> dict[str, object]:
    return {
        "site": hospital.name,
        "invitation": "invitation.json",
        "state": "state",
        "policy": {
            "methods": list(METHOD_NAMES),
            "secure_aggregation": "required" if rehearsal.is_masked else "not-required",
            "smallest_sites": 3,
            "largest_rounds": 10_000,
            "largest_megabytes": 10_000.0,
            "largest_clipping_range": 8.0,
        },
        "data": {
            "table": str(hospital.table),
            "contract": str(hospital.contract),
            "split": {"seed": rehearsal.seed},
            "unaccepted_warnings": "tell",  # nobody works at these hospitals
        },
        "training": {"draws": "published"},  # so that equal seeds end with equal bits, masked or not
    }


def _plan(rehearsal: Rehearsal, study: Study, identities: dict[str, str]) -> dict[str, object]:
    plan = plan_of(study, rehearsal.hospitals, latent=rehearsal.latent, is_masked=rehearsal.is_masked)
    if plan["kind"] == "network":
        plan["schedule"] = {"aggregate": "every-epoch", "epochs": rehearsal.rounds, "batches_per_epoch": 5}
        plan["start"] = {"name": "equal", "seed": rehearsal.seed}
    return plan | {
        "sites": [{"name": name, "identity": identity} for name, identity in sorted(identities.items())],
        "masking": {"required": rehearsal.is_masked},
    }
