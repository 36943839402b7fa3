"""Creates and reads the federation's certificate authority, which is one directory of keys and certificates.

The issuing key is unencrypted beside the coordinator, with mode 0600, because sites enrol and renew at times when
nobody can type a passphrase. A thief of this key can forge certificates, but no entry in the register or in a plan. The
root's key is encrypted with a passphrase of 130 random bits, which nobody can guess. It is needed only when the issuing
certificate expires.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import AfterValidator, BeforeValidator, PlainSerializer

from host import secret_files
from host.durable import sync_folder
from pki import certificates
from pki.certificate_chain import certificates_in
from pki.names import Address, FederationName, SiteName, federation_name, host_name
from pki.register import IssuedCertificate, Register
from protos.errors import ConfigurationError, RefusedError
from protos.plan.documents import Document, parse_document


def new_passphrase() -> str:
    """Return a passphrase of 130 random bits, in groups that can be copied by hand."""
    letters = "abcdefghijklmnopqrstuvwxyz234567"
    return "-".join("".join(secrets.choice(letters) for _ in range(length)) for length in (5, 5, 5, 5, 6))


_Address: TypeAlias = Annotated[
    Address, BeforeValidator(lambda one: Address.parse(one) if isinstance(one, str) else one), PlainSerializer(str)
]
_Hosts: TypeAlias = Annotated[tuple[str, ...], AfterValidator(lambda hosts: tuple(map(host_name, hosts)))]


class FederationRecord(Document):
    """The content of federation.json: the federation's name, two addresses, and further hosts of the certificate."""

    format: Literal[1] = 1
    federation: Annotated[FederationName, AfterValidator(federation_name)]
    coordinator: _Address
    enrolment: _Address
    hosts: _Hosts = ()


@dataclass(frozen=True, slots=True)
class Authority:
    """The directory of the certificate authority. Keys are read when they are used, and not kept in memory."""

    directory: Path
    record: FederationRecord

    root_certificate_path = secret_files.FileIn("root.crt")  # both sides of every connection trust it
    sealed_root_key_path = secret_files.FileIn("root.key.sealed")  # can be stored elsewhere
    issuing_certificate_path = secret_files.FileIn("issuing.crt")
    issuing_key_path = secret_files.FileIn("issuing.key")  # mode 0600
    coordinator_certificate_path = secret_files.FileIn("coordinator.crt")  # its leaf, then the issuing certificate
    coordinator_key_path = secret_files.FileIn("coordinator.key")  # for TLS, mode 0600
    register_path = secret_files.FileIn("register.sqlite")

    @classmethod
    def create(cls, directory: Path, record: FederationRecord, *, passphrase: str, now: datetime) -> Authority:
        """Create root, issuing authority, coordinator's certificate and register of sites. A failure creates none.

        `passphrase` is that of `new_passphrase`. It encrypts the root's key; an empty one is a ValueError.

        Raises:
            ConfigurationError: the directory is not empty.
        """
        parent = directory.absolute().parent
        with secret_files.explained(directory, "made"):
            if directory.exists() and any(directory.iterdir()):
                raise FileExistsError
            parent.mkdir(parents=True, exist_ok=True)
            unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".incomplete", dir=parent))
        try:
            cls(unfinished, record)._fill(passphrase, now)
            with secret_files.explained(directory, "made"):
                unfinished.rename(directory)
                sync_folder(parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return cls.load(directory)

    @classmethod
    def load(cls, directory: Path) -> Authority:
        """Open a certificate authority that `pki init` created."""
        content, unchanged = secret_files.read_public(directory / "federation.json"), "Nothing was started or changed."
        record = parse_document(content, FederationRecord, source="federation.json", consequence=unchanged)
        return cls(directory, record)

    @property
    def federation(self) -> FederationName:
        return self.record.federation

    def root_pem(self) -> bytes:
        return secret_files.read_public(self.root_certificate_path)

    def issue_site(self, key: ec.EllipticCurvePublicKey, site: SiteName, now: datetime) -> IssuedCertificate:
        """Issue a certificate for a site's key. The register decides later whether the certificate is accepted."""
        issuing = self._issuing()
        leaf = certificates.site_certificate(key, issuing, self.federation, site, now)
        chain = certificates.certificate_pem(leaf) + certificates.certificate_pem(issuing.certificate)
        return IssuedCertificate(certificates.certificate_sha256(leaf), certificates.public_key_sha256(key), chain)

    def coordinator_leaf(self) -> x509.Certificate:
        return certificates_in(secret_files.read_public(self.coordinator_certificate_path))[0]

    def renew_coordinator(self, now: datetime, record: Callable[[datetime], None] = lambda _: None) -> None:
        """Issue the coordinator's next certificate for the coordinator's existing key.

        A running coordinator must read the file again. `record` receives the end of the certificate, an aware time,
        before it is written. If `record` raises, the earlier certificate stays.
        """
        # The key stays the same, so certificate and key on disk match even after a power cut.
        key, issuing = certificates.key_from_pem(secret_files.read_secret(self.coordinator_key_path)), self._issuing()
        hosts = (self.record.coordinator.host, self.record.enrolment.host, *self.record.hosts)
        leaf = certificates.coordinator_certificate(key.public_key(), issuing, self.federation, hosts, now)
        record(leaf.not_valid_after_utc)
        chain = certificates.certificate_pem(leaf) + certificates.certificate_pem(issuing.certificate)
        secret_files.write_public(self.coordinator_certificate_path, chain)

    def renew_issuing(self, passphrase: str, now: datetime) -> None:
        """Issue the next certificates of the issuing authority and the coordinator. This needs the root key.

        The issuing key stays the same, so the sites' certificates and chains remain valid.
        """
        root, key = self.unsealed_root(passphrase), self._issuing().key.public_key()
        issuing = certificates.issuing_certificate(key, root, self.federation, now)
        secret_files.write_public(self.issuing_certificate_path, certificates.certificate_pem(issuing))
        self.renew_coordinator(now)

    def unsealed_root(self, passphrase: str) -> certificates.Issuer:
        """Return the root certificate with its key, which is a secret. Raises RefusedError for a wrong passphrase."""
        root, sealed = certificates_in(self.root_pem())[0], secret_files.read_secret(self.sealed_root_key_path)
        try:
            key = certificates.key_from_pem(sealed, passphrase)
        except ConfigurationError:
            key = None
        if key is None or key.public_key() != root.public_key():
            raise RefusedError(
                what="The passphrase is wrong, or the file with the root key was changed.",
                consequence="The key remains encrypted and nothing was written.",
                remedy="Try the passphrase again. If it is certainly right, restore the file from its backup.",
            )
        return certificates.Issuer(root, key)

    def _fill(self, passphrase: str, now: datetime) -> None:
        root_key, issuing_key = certificates.new_tls_key(), certificates.new_tls_key()
        root = certificates.Issuer(certificates.root_certificate(root_key, self.federation, now), root_key)
        issuing = certificates.issuing_certificate(issuing_key.public_key(), root, self.federation, now)
        sealed = certificates.key_to_pem(root_key, passphrase)
        secret_files.write_secret(self.sealed_root_key_path, sealed, replace=False)
        secret_files.write_secret(self.issuing_key_path, certificates.key_to_pem(issuing_key), replace=False)
        secret_files.write_public(self.root_certificate_path, certificates.certificate_pem(root.certificate))
        secret_files.write_public(self.issuing_certificate_path, certificates.certificate_pem(issuing))
        coordinator_key = certificates.key_to_pem(certificates.new_tls_key())
        secret_files.write_secret(self.coordinator_key_path, coordinator_key, replace=False)
        self.renew_coordinator(now)
        Register.create(self.register_path).close()
        secret_files.write_public(self.directory / "federation.json", self.record.model_dump_json(indent=2).encode())

    def _issuing(self) -> certificates.Issuer:
        issuing = certificates_in(secret_files.read_public(self.issuing_certificate_path))[0]
        return certificates.Issuer(issuing, certificates.key_from_pem(secret_files.read_secret(self.issuing_key_path)))
