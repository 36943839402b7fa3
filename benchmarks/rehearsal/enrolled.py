"""Prepares a federation of many sites within this process, without starting three programs for each site.

Authority, invitations, enrolment and approvals are the programs' own functions, in the order in which people
would call them.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import yaml

from benchmarks.rehearsal.federation import Setting, coordinator_document, hospital_document, plan_document
from pki.authority import Authority, FederationRecord
from pki.enrolment_decisions import Issued, enrolment_request, handle_request, invite_site
from pki.identity_key import identity_fingerprint, make_identity_key
from pki.names import Address, FederationName, SiteName
from pki.register import Register
from pki.site_keys import SiteKeys
from protos.plan.plan import Plan, plan_from_json
from site_agent.agent.connection import Credentials
from site_agent.approvals import others_approved
from site_agent.approving import approve
from site_agent.hospital import Hospital
from site_agent.state_folders import agent_folder, gate_folder


def enrol_all(setting: Setting) -> dict[str, str]:
    """Create an authority and a certificate for every site in the setting's folder. Return the keys' fingerprints."""
    now, (host, _, port) = datetime.now(UTC), setting.address.rpartition(":")
    address = Address(host, int(port))
    record = FederationRecord(federation=FederationName("benchmark"), coordinator=address, enrolment=address)
    authority = Authority.create(setting.folder / "authority", record, passphrase="correct horse battery", now=now)
    return {name: _enrol(authority, setting, name, now) for name in setting.site_names}


def _enrol(authority: Authority, setting: Setting, name: str, now: datetime) -> str:
    site, state = SiteName(name), setting.folder / name / "state"
    state.mkdir(parents=True, mode=0o700)
    keys, key = SiteKeys.create(agent_folder(state)), make_identity_key(gate_folder(state))
    with Register(authority.register_path) as register:
        invitation = invite_site(authority, register, site, valid_for=timedelta(hours=1), is_pre_approved=True, now=now)
        request = enrolment_request(invitation, keys.signing_request(), key)
        answer = handle_request(authority, register, request, now)
    assert isinstance(answer, Issued)
    keys.install(answer.chain_pem, authority.root_pem(), site=site, federation=invitation.federation, now=now)
    (agent_folder(state) / "federation.json").write_text(json.dumps({"coordinator": setting.address}))
    return identity_fingerprint(key)


def write_run(setting: Setting, identities: dict[str, str], **changes: object) -> Plan:
    """Write plan, configurations and approvals of one run for the setting's sites into the setting's folder.

    Args:
        setting: the run; its folder holds what `enrol_all` has made.
        identities: of every site, by name.
        changes: keys of the plan that are not what `plan_document` says.
    """
    listed = {name: identities[name] for name in setting.site_names}
    document = plan_document(setting, setting.parameters, listed) | changes
    plan = plan_from_json(json.dumps(document))
    (setting.folder / "run-plan.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    configuration = coordinator_document(setting) | {"state": "run-state", "plans": ["run-plan.yaml"]}
    (setting.folder / "run.yaml").write_text(yaml.safe_dump(configuration, sort_keys=False))
    for name in setting.site_names:
        config = setting.folder / name / "hospital.yaml"
        document = hospital_document(setting, name) | {"coordinator": setting.address}
        config.write_text(yaml.safe_dump(document, sort_keys=False))
        state = config.with_name("state")
        others = [other.run_name for other, _ in others_approved(state, plan)]  # all rows are made up
        approve(state, plan, by="the benchmark", at=datetime.now(UTC), beside=others)
    return plan


def credentials_of(hospital: Hospital) -> Credentials:
    """Return the key and certificate of an enrolled site, and the root certificates that it trusts."""
    keys = SiteKeys.load(agent_folder(hospital.state_path))
    return Credentials(
        key=keys.tls_key_path.read_bytes(),
        chain=keys.certificate_path.read_bytes(),
        root=keys.root_certificate_path.read_bytes(),
    )
