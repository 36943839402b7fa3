"""Both keys of a made-up site in one folder: what a site's network process and its gate keep apart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import pki.site_keys
from pki.certificates import certificate_sha256
from pki.identity_key import has_identity_key, identity_fingerprint, identity_key_path, make_identity_key
from pki.identity_key import read_identity_key as read


@dataclass(frozen=True, slots=True)
class SiteKeys(pki.site_keys.SiteKeys):
    """A site's TLS key and certificates, with its identity key beside them."""

    @classmethod
    def exists(cls, directory: Path) -> bool:
        """Whether both are there."""
        return has_identity_key(directory) and (directory / "tls.key").exists()

    @classmethod
    def create(cls, directory: Path) -> SiteKeys:
        """Make both keys, or the one that is missing."""
        has_tls_key = pki.site_keys.SiteKeys.exists(directory)
        if has_tls_key or not has_identity_key(directory):
            make_identity_key(directory)  # refuses where it is there already
        if not has_tls_key:
            pki.site_keys.SiteKeys.create(directory)
        return cls.load(directory)

    @classmethod
    def load(cls, directory: Path) -> SiteKeys:
        """Open both, after checking them."""
        pki.site_keys.SiteKeys.load(directory)
        read(directory)
        return cls(directory)

    @property
    def identity_key_path(self) -> Path:
        """The identity key's file."""
        return identity_key_path(self.directory)

    def identity_key(self) -> Ed25519PrivateKey:
        """The identity key."""
        return read(self.directory)

    def certificate_sha256(self) -> str:
        """Of the current certificate."""
        return certificate_sha256(self.leaf())

    def identity_fingerprint(self) -> str:
        """Its fingerprint."""
        return identity_fingerprint(self.identity_key())
