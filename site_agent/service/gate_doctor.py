"""Checks the gate process for `site-agent doctor`: folders, identity key, policy, audit log and sockets.

It reads no patient's data, opens no connection and changes nothing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from host import diagnosis
from host.diagnosis import Finding, failure, fault_of, fine, judge_directory, judge_disk, judge_secrets, warning
from host.secret_files import NotRunning
from pki.identity_key import identity_key_path
from site_agent.hospital import Hospital
from site_agent.service.status_socket import no_status, read_status
from site_agent.state_folders import gate_folder, gate_store_path


async def examine(hospital: Hospital) -> list[Finding]:
    """Check the gate process of this site, and return all findings."""
    folder = gate_folder(hospital.state_path)
    found = [judge_directory(folder), judge_disk(*diagnosis.free_on_disk(hospital.state_path))]
    found += judge_secrets((identity_key_path(folder),))
    found += _policy(hospital)
    found += await _program(hospital)
    if gate_store_path(hospital.state_path).exists():
        found += _store(hospital)
    return found


def _policy(hospital: Hospital) -> list[Finding]:
    """Return the policy's settings that weaken protection."""
    policy, loose = hospital.policy, []
    if policy.secure_aggregation == "not-required":
        loose.append("secure_aggregation: not-required lets a plan send updates without masks")
    if policy.smallest_sites < 3:
        loose.append(f"smallest_sites: {policy.smallest_sites} lets others compute this site's update")
    says = "No key of the policy reduces the default protection."
    remedy = "If your data protection officer did not decide this, change the key in hospital.yaml."
    return [warning("D416", f"{text}.", remedy) for text in loose] or [fine("D416", says)]


async def _program(hospital: Hospital) -> list[Finding]:
    answer = await read_status(hospital.state_path)
    found = [fine("D418", f"The gate process is running: {json.loads(answer)['phase']}.")] if answer else []
    if not found and not isinstance(silent := no_status(hospital.state_path), NotRunning):
        found.append(failure("D418", silent.what, silent.remedy))
    elif not found:
        remedy = "Run `systemctl start site-gate` or `site-agent join`. Run this check as the gate's user."
        found.append(warning("D418", "No gate process of this site is running.", remedy))
    if hospital.trainer_socket is not None and not answer:  # a running gate uses the trainer's only connection
        found.append(_trainer_socket(Path(hospital.trainer_socket)))
    return found


def _trainer_socket(place: Path) -> Finding:
    if not place.is_socket():
        remedy = "Run `systemctl start site-trainer`. The path must be the path in its unit."
        return failure("D419", f"There is no socket of the trainer at {place}.", remedy)
    if not os.access(place, os.W_OK):
        remedy = "Put this user into the socket's group, as the packages do."
        return failure("D419", f"This user account may not use the trainer's socket {place}.", remedy)
    return fine("D419", f"The trainer's socket is at {place}.")


def _store(hospital: Hospital) -> list[Finding]:
    """Check the audit log, and the file with everything that this site has masked, sent and spent."""
    fault = fault_of(gate_store_path(hospital.state_path), hospital.site)
    if fault is not None:
        return [failure("D422", fault.what, fault.remedy)]
    return [fine("D422", "No record of the audit log was changed or damaged.")]
