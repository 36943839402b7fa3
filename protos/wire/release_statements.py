"""Signs and checks a release: every site of a plan agrees that one recipient may receive the final parameters.

Each site signs with its identity key, which the plan lists by fingerprint. So the office cannot sign for a site. A
signature for one recipient, run or result is not valid for another. People send the files to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import StringConstraints, ValidationError

from protos.errors import RefusedError
from protos.fingerprints import fingerprint
from protos.plan.canonical import pack
from protos.plan.documents import READABLE, Document
from protos.plan.plan import Name, Plan

Line = Annotated[str, StringConstraints(pattern=f"^{READABLE}{{1,200}}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class ReleaseApproval(Document):
    """One site's signed approval; the signature covers all other fields.

    Attributes:
        run: the run's name, which contains the plan's digest.
        parameters_sha256: of the last aggregate, as this site received it.
        recipient: the recipient of the parameters and the purpose, in one line.
        at: an aware time in ISO 8601.
        identity_key: the site's raw Ed25519 public key in hexadecimal.
        signature: 64 bytes in hexadecimal.
    """

    run: Line
    parameters_sha256: Digest
    recipient: Line
    site: Name
    by: Line
    at: Line
    identity_key: Digest
    signature: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]

    @property
    def signed_bytes(self) -> bytes:
        """Return the bytes of the approval that the site signs."""
        return pack("release", self.run, self.parameters_sha256, self.recipient, self.site, self.by, self.at)


def approve_release(
    key: Ed25519PrivateKey, *, run: str, parameters_sha256: str, recipient: str, site: str, by: str, at: str
) -> ReleaseApproval:
    """Sign a site's approval of a release. The arguments are the fields of ReleaseApproval."""
    signature = key.sign(pack("release", run, parameters_sha256, recipient, site, by, at)).hex()
    return ReleaseApproval(
        run=run, parameters_sha256=parameters_sha256, recipient=recipient, site=site, by=by, at=at,
        identity_key=key.public_key().public_bytes_raw().hex(), signature=signature,
    )  # fmt: skip


def read_release_approval(path: Path) -> ReleaseApproval:
    """Read a site's approval of a release from a file. Raises RefusedError if the file is no approval."""
    try:
        return ReleaseApproval.model_validate_json(path.read_bytes())
    except ValidationError as cause:
        raise _refused(f"{path.name} is not a site's approval of a release") from cause


def check_release(
    plan: Plan, sites: Iterable[str], parameters_sha256: str, approvals: Sequence[ReleaseApproval]
) -> str:
    """Return the recipient if every site signed for the same parameters and the same recipient.

    Args:
        parameters_sha256: of the final parameters at the coordinator.

    Raises:
        RefusedError: an approval is missing, is for another run or other parameters, or is not signed by the key in the
            plan.
    """
    listed = {site.name: site.identity for site in plan.sites}
    for approval in approvals:
        public = bytes.fromhex(approval.identity_key)
        if listed.get(approval.site) != fingerprint(public):
            raise _refused(f"{approval.site} signed with a key that the plan does not list")
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(bytes.fromhex(approval.signature), approval.signed_bytes)
        except (InvalidSignature, ValueError) as cause:
            raise _refused(f"the signature of {approval.site} does not match the content of its file") from cause
        if approval.run != plan.run_name:
            raise _refused(f"{approval.site} approved the release of another run, {approval.run}")
        if approval.parameters_sha256 != parameters_sha256:
            raise _refused(f"{approval.site} approved the release of other parameters")
    missing = sorted(set(sites) - {approval.site for approval in approvals})
    if missing:
        raise _refused(f"the approval of {', '.join(missing)} is missing")
    recipients = {approval.recipient for approval in approvals}
    if len(recipients) != 1:
        raise _refused(f"the sites named {len(recipients)} different recipients")
    return recipients.pop()


def _refused(why: str) -> RefusedError:
    return RefusedError(
        what=f"The parameters are not released: {why}.",
        consequence="Nothing was written or sent.",
        remedy="Let each site run `site-agent release approve` with the same recipient, and collect the files.",
    )
