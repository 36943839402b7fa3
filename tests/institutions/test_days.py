"""Five days in a few minutes. A booted federation has all kinds of trouble in random order, and no person helps. Then
its state is put back to before the study, which is made again, undisturbed. DAYS_EVENTS is how many events there are,
and DAYS_SEED draws them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time

import pytest
import yaml

from tests.institutions.federation import HOSPITALS, HURRIED, OFFICE, Federation, together
from tests.institutions.machines import Machine, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600, func_only=True)]

EVENTS, SEED = int(os.environ.get("DAYS_EVENTS", "12")), int(os.environ.get("DAYS_SEED", "1"))
STATE = "/var/lib/global-layers"
UNITS = ("site-agent", "site-gate", "site-trainer")
# What happens, and what ends it some seconds later; {unit} is one of the machine's.
ANYWHERE = {
    "killed": ("systemctl kill --signal KILL {unit}", "true"),
    "hangs": ("systemctl kill --signal STOP {unit}", "true"),  # the watchdog ends it
    "restarted": ("systemctl restart --no-block {unit}", "true"),
    "cable": ("ip link set host0 down", "ip link set host0 up"),
}
AT_THE_OFFICE = {"renewed": (f"runuser -u coordinator -- pki renew --directory {STATE}/coordinator/authority", "true")}
AT_HOSPITALS = {
    "mount": (
        f"mv {STATE}/patients {STATE}/gone && systemctl restart --no-block site-trainer",
        f"mv {STATE}/gone {STATE}/patients",
    ),
    "name": (
        "sed -i.kept /coordinator/d /etc/hosts && systemctl restart --no-block site-agent",
        "mv /etc/hosts.kept /etc/hosts",
    ),
    "reboot": ("systemctl reboot --no-block", "true"),
}
# The disk of this hospital is small, and in memory, so that a reboot would lose it.
ON_A_SMALL_DISK = {"mount": AT_HOSPITALS["mount"], "full": (f"cat /dev/zero > {STATE}/filler", f"rm {STATE}/filler")}


def _units(machine: Machine) -> tuple[str, ...]:
    return ("coordinator",) if machine.name == OFFICE else UNITS


def _shell(machine: Machine, line: str, *, may_fail: bool = False) -> str:
    return machine.run("sh", "-c", line, may_fail=may_fail, seconds=120)


def _trouble(federation: Federation, luck: random.Random) -> str:
    machine = luck.choice([federation.office, *federation.hospitals])
    own = {OFFICE: AT_THE_OFFICE, HURRIED: ON_A_SMALL_DISK}.get(machine.name, AT_HOSPITALS)
    (kind, (begins, ends)), unit = luck.choice([*(ANYWHERE | own).items()]), luck.choice(_units(machine))
    _shell(machine, begins.format(unit=unit), may_fail=True)
    time.sleep(luck.uniform(0.0, 8.0))
    wait_until(machine.is_up, f"{machine.name} runs")
    _shell(machine, ends)
    return f"{kind} {machine.name} {unit}"


def _came_out(federation: Federation) -> dict[str, str]:
    """The digest of the shared parameters, and of what each hospital's report says of its models."""
    office = federation.office
    wait_until(lambda: office.property("coordinator", "ActiveState") == "inactive", "the study is over", seconds=900)
    record = json.loads(_shell(office, f"cat {STATE}/coordinator/state/runs/days-*/record.json"))
    assert record["is_complete"], record["reason"]
    found = {OFFICE: str(record["shared_parameters_sha256"])}
    for machine in federation.hospitals:
        wait_until(lambda: machine.property("site-gate", "ActiveState") == "inactive", "it ends")  # noqa: B023
        report = json.loads(_shell(machine, f"cat {STATE}/site/reports/days-*.json"))["federated"]
        found[machine.name] = hashlib.sha256(json.dumps(report, sort_keys=True).encode()).hexdigest()
    return found


def test_five_days_leave_no_unit_failed_and_change_no_bit(founded: Federation) -> None:
    """Whatever fails for a while, everything goes on by itself, to the same models everywhere."""
    machines, luck = [founded.machines[name] for name in (OFFICE, *HOSPITALS)], random.Random(SEED)
    plan = yaml.safe_load(founded.office.run("cat", "/etc/global-layers/plan.yaml")) | {"study": "days"}
    plan |= {"timing": {"save_every_rounds": 5, "save_every_seconds": None}}
    plan["schedule"] |= {"epochs": 10 * EVENTS}
    founded.agree(plan)
    together(lambda each: each.run("systemctl", "stop", *_units(each)), machines)
    together(lambda each: _shell(each, f"tar --create --file /srv/before.tar --directory {STATE} ."), machines)

    founded.follow("Another study")
    happened = []
    while len(happened) < EVENTS and founded.office.property("coordinator", "ActiveState") != "inactive":
        happened.append(_trouble(founded, luck))
    disturbed = _came_out(founded)
    failed = [each.run("systemctl", "--failed", "--plain", "--no-legend") for each in machines]
    together(lambda each: each.run("systemctl", "stop", *_units(each)), machines)
    again = f"find {STATE} -mindepth 1 -delete && tar --extract --file /srv/before.tar --directory {STATE}"
    together(lambda each: _shell(each, again), machines)
    founded.follow("Another study")
    undisturbed = _came_out(founded)

    units, bits = sum(map(bool, failed)), sum(disturbed[name] != undisturbed[name] for name in undisturbed)
    print(f"\nevents={len(happened)} units_left_failed={units} models_different={bits}")
    assert (units, bits) == (0, 0), (happened, failed)
