"""Stores the TLS key and the certificates of a site in one private directory of its agent.

tls.key (P-256) is made here and never leaves. tls.crt (leaf, then issuing authority) and root.crt come with enrolment.
A renewal prepares tls.key.next, and the old pair is used until the new pair is complete. Another process has the
identity key (identity_key.py). The rules:

* an existing key is never overwritten, except by a renewal that has its certificate;
* a certificate is written only if it is for this key, site and federation, under the trusted root.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from host import secret_files
from host.durable import sync_folder
from pki import certificates
from pki.certificate_chain import certificates_in, checked_leaf
from pki.names import SiteName
from protos.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class SiteKeys:
    """The directory of a site's TLS key and certificates. The key is read when it is used, and not kept in memory."""

    directory: Path

    tls_key_path = secret_files.FileIn("tls.key")  # mode 0600
    certificate_path = secret_files.FileIn("tls.crt")  # the site's certificate, then the issuing certificate
    root_certificate_path = secret_files.FileIn("root.crt")  # of the federation

    @classmethod
    def exists(cls, directory: Path) -> bool:
        return (directory / "tls.key").exists()

    @classmethod
    def create(cls, directory: Path) -> SiteKeys:
        """Create the TLS key. Raises ConfigurationError if it exists."""
        secret_files.make_private_directory(directory)
        keys = cls(directory)
        if cls.exists(directory):
            raise ConfigurationError(
                what=f"{directory} already has the keys of a site.",
                consequence="The keys are unchanged, and nothing was sent.",
                remedy="Use these keys, or choose an empty directory for a new site.",
            )
        pem = certificates.key_to_pem(certificates.new_tls_key())
        secret_files.write_secret(keys.tls_key_path, pem, replace=False)
        return cls.load(directory)

    @classmethod
    def load(cls, directory: Path) -> SiteKeys:
        """Open a site's TLS key and certificates, after checking that they belong together."""
        keys = cls(directory)
        keys._finish_interrupted_renewal()
        key = certificates.key_from_pem(secret_files.read_secret(keys.tls_key_path))
        if keys.is_enrolled() and keys.leaf().public_key() != key.public_key():
            raise ConfigurationError(
                what=f"{keys.certificate_path} does not belong to {keys.tls_key_path}.",
                consequence="No connection was made and nothing was sent.",
                remedy="Restore both files from the same backup, or enrol again with a new invitation.",
            )
        return keys

    def is_enrolled(self) -> bool:
        return self.certificate_path.exists() and self.root_certificate_path.exists()

    def leaf(self) -> x509.Certificate:
        return certificates_in(secret_files.read_public(self.certificate_path))[0]

    def signing_request(self) -> bytes:
        return certificates.signing_request(certificates.key_from_pem(secret_files.read_secret(self.tls_key_path)))

    def install(self, chain_pem: bytes, root_pem: bytes, *, site: SiteName, federation: str, now: datetime) -> None:
        """Store a checked certificate from enrolment: leaf, then issuing authority, under the root of the invitation.

        Raises:
            RefusedError: the certificate is not for our key and our name, or not under this root.
        """
        self._check(self.tls_key_path, chain_pem, root_pem, site=site, federation=federation, now=now)
        secret_files.write_public(self.root_certificate_path, root_pem)
        secret_files.write_public(self.certificate_path, chain_pem)

    def next_signing_request(self) -> bytes:
        """Create a new TLS key and return its signing request (PEM). The key of an unfinished renewal is replaced."""
        # A key that waited for months in an interrupted renewal may belong to a certificate that has expired, and a key
        # is certified only once. So the key is always new.
        key = certificates.new_tls_key()
        secret_files.write_secret(self._next(self.tls_key_path), certificates.key_to_pem(key), replace=True)
        return certificates.signing_request(key)

    def install_next(self, chain_pem: bytes, *, site: SiteName, federation: str, now: datetime) -> None:
        """Replace the TLS key and certificate by the renewed pair. A power cut leaves the old pair or the new pair.

        Raises:
            RefusedError: the chain is not for the next key and our name, or not under our root.
        """
        root_pem = secret_files.read_public(self.root_certificate_path)
        self._check(self._next(self.tls_key_path), chain_pem, root_pem, site=site, federation=federation, now=now)
        secret_files.write_public(self._next(self.certificate_path), chain_pem)
        self._exchange()

    def _exchange(self) -> None:
        # The key moves first. After a crash between the two moves, tls.crt.next without tls.key.next means that the
        # certificate must follow (`_finish_interrupted_renewal`).
        for path in (self.tls_key_path, self.certificate_path):
            with secret_files.explained(path, "replaced"):
                self._next(path).replace(path)
                sync_folder(self.directory)

    def _finish_interrupted_renewal(self) -> None:
        certificate = self._next(self.certificate_path)
        if certificate.exists() and not self._next(self.tls_key_path).exists():
            with secret_files.explained(self.certificate_path, "replaced"):
                certificate.replace(self.certificate_path)
                sync_folder(self.directory)

    def _check(
        self, key_path: Path, chain_pem: bytes, root_pem: bytes, *, site: SiteName, federation: str, now: datetime
    ) -> None:
        key = certificates.key_from_pem(secret_files.read_secret(key_path)).public_key()
        checked_leaf(chain_pem, root_pem, key, site=site, federation=federation, now=now)

    @staticmethod
    def _next(path: Path) -> Path:
        return path.with_name(f"{path.name}.next")
