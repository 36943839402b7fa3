"""Reads and writes the invitation of a site: addresses, the trusted root, and a token that works one time.

The file has the authority's full certificate, so nothing is trusted on first use. Any holder of the file can request
enrolment as this site, until the token is used or has expired. By default a person then compares fingerprints before a
certificate is issued. The invitation's fingerprint covers everything that a forger would change. It can be read aloud,
because it does not reveal the token.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from cryptography.hazmat.primitives import hashes

from host import secret_files
from host.clock_words import COMPARE_CLOCK, at, spelled
from pki.certificate_chain import certificates_in
from pki.names import Address, FederationName, SiteName, federation_name, site_name
from protos.errors import ConfigurationError, RefusedError
from protos.fingerprints import grouped
from protos.plan.canonical import pack
from protos.plan.documents import Document, parse_document

TOKEN_BYTES: Final = 24
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class _File(Document):
    format: Literal[1] = 1
    federation: str
    site: str
    coordinator: str
    enrolment: str
    expires: str
    token: str
    root: str


def new_token() -> bytes:
    """Return a new invitation token of 192 random bits."""
    return secrets.token_bytes(TOKEN_BYTES)


def token_sha256(token: bytes) -> str:
    """Return the SHA-256 of a token, 64 hexadecimal digits. The register stores only this digest."""
    # A plain hash is enough: 192 random bits cannot be guessed, unlike a password.
    return hashlib.sha256(token).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """An invitation for one site. `expires` is aware and has whole seconds. `root_pem` is one certificate."""

    federation: FederationName
    site: SiteName
    coordinator: Address
    enrolment: Address
    expires: datetime
    root_pem: bytes
    token: bytes = field(repr=False)

    def __post_init__(self) -> None:
        federation_name(self.federation)
        site_name(self.site)
        if len(self.token) != TOKEN_BYTES:
            raise _wrong("its token does not have 24 bytes")
        if self.expires.tzinfo is None or self.expires.microsecond:
            raise _wrong("its expiry is not a whole second of a known time zone")
        try:
            number = len(certificates_in(self.root_pem))
        except RefusedError as cause:
            raise _wrong("its root certificate cannot be read") from cause
        if number != 1:
            raise _wrong(f"it has {number} root certificates instead of one")

    @property
    def fingerprint(self) -> str:
        """Return the invitation's fingerprint, which people compare, in 4 groups of 4 characters.

        It is 80 bits of a hash over federation, site, addresses, expiry, root and the token's hash.
        """
        # 80 bits are enough: a forger must find exactly this value. The birthday bound does not help a forger, because
        # a stranger cannot choose any part of the honest invitation.
        root = certificates_in(self.root_pem)[0]
        expires = self.expires.astimezone(UTC).strftime(_TIME)
        parts = (self.federation, self.site, str(self.coordinator), str(self.enrolment), expires)
        secret = bytes.fromhex(token_sha256(self.token))
        covered = pack("invitation", *(part.encode() for part in parts), root.fingerprint(hashes.SHA256()), secret)
        return grouped(hashlib.sha256(covered).digest()[:10])

    def check_not_expired(self, now: datetime) -> None:
        """Check that the invitation is still valid at `now`. Raises RefusedError if the invitation is not valid."""
        if now >= self.expires:
            raise RefusedError(
                what=f"The invitation of site {self.site} expired on {at(self.expires)}. "
                f"This computer's clock shows {at(now)}, {spelled((now - self.expires).total_seconds())} later.",
                consequence="Nothing was sent and no key was created.",
                remedy=f"{COMPARE_CLOCK} If the clock is right, ask the federation office for a new invitation.",
            )

    def to_json(self) -> bytes:
        """Encode the invitation as the bytes of its file. These bytes are a secret, because they contain the token."""
        content = _File(
            federation=self.federation,
            site=self.site,
            coordinator=str(self.coordinator),
            enrolment=str(self.enrolment),
            expires=self.expires.astimezone(UTC).strftime(_TIME),
            token=base64.urlsafe_b64encode(self.token).decode("ascii"),
            root=self.root_pem.decode("ascii"),
        )
        return content.model_dump_json(indent=2).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Invitation:
        """Decode an invitation. Raises ConfigurationError if the bytes are not an invitation."""
        found = parse_document(data, _File, source="The invitation", consequence="It was not used. Nothing was sent.")
        try:
            expires = datetime.strptime(found.expires, _TIME).replace(tzinfo=UTC)
            token = base64.b64decode(found.token.encode("ascii"), altchars=b"-_", validate=True)
            root_pem = found.root.encode("ascii")
        except ValueError as cause:
            raise _wrong("its expiry, token or root certificate is not valid") from cause
        return cls(
            federation=federation_name(found.federation),
            site=site_name(found.site),
            coordinator=Address.parse(found.coordinator),
            enrolment=Address.parse(found.enrolment),
            expires=expires,
            root_pem=root_pem,
            token=token,
        )

    @classmethod
    def load(cls, path: Path) -> Invitation:
        """Read an invitation from a file. The file mode is not checked, because the file came by e-mail."""
        return cls.from_json(secret_files.read_public(path))

    def save(self, path: Path) -> None:
        """Write the invitation with mode 0600. An existing file is an error."""
        secret_files.write_secret(path, self.to_json(), replace=False)


def _wrong(reason: str) -> ConfigurationError:
    return ConfigurationError(
        what=f"This is not a usable invitation: {reason}.",
        consequence="The invitation was not used, and nothing was written or sent.",
        remedy="Ask the federation office to send the file of the invitation again.",
    )
