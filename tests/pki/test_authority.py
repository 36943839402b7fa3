"""An authority is created completely or not at all, and can be renewed without any action of the sites."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from pki import certificates
from pki.authority import Authority, FederationRecord
from pki.certificate_chain import certificates_in, verified_leaf
from pki.names import SiteName
from protos.errors import ConfigurationError, RefusedError

PASSPHRASE = "correct horse battery"


def test_an_authority_has_its_files_and_private_keys_are_private(authority: Authority) -> None:
    """The directory holds what the coordinator reads; keys and register have mode 0600."""
    modes = {path.name: path.stat().st_mode & 0o777 for path in authority.directory.iterdir()}

    assert modes == {
        "root.crt": 0o644, "root.key.sealed": 0o600, "issuing.crt": 0o644, "issuing.key": 0o600,
        "coordinator.crt": 0o644, "coordinator.key": 0o600, "register.sqlite": 0o600, "federation.json": 0o644,
    }  # fmt: skip
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in authority.sealed_root_key_path.read_bytes()
    assert Authority.load(authority.directory) == authority


def test_a_failure_leaves_nothing_behind(tmp_path: Path, record: FederationRecord, now: datetime) -> None:
    """A directory in use is refused, and a root's key without passphrase; no file of the attempt remains."""
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    for folder, passphrase in (("used", PASSPHRASE), ("open", "")):
        with pytest.raises((ConfigurationError, ValueError)):
            Authority.create(tmp_path / folder, record, passphrase=passphrase, now=now)

    assert [path.name for path in tmp_path.iterdir()] == ["used"]


def test_renewal_keeps_sites_valid(tmp_path: Path, record: FederationRecord, now: datetime) -> None:
    """After the issuing certificate is renewed, an old site chain and new ones both end at the old root."""
    authority = Authority.create(tmp_path / "pki", record, passphrase=PASSPHRASE, now=now)
    later = now + timedelta(days=1060)
    key = certificates.new_tls_key().public_key()
    old = authority.issue_site(key, SiteName("a"), later).chain_pem
    with pytest.raises(RefusedError):
        authority.renew_issuing("not the passphrase", later)
    other = certificates.key_to_pem(certificates.new_tls_key(), PASSPHRASE)
    sealed = authority.sealed_root_key_path.read_bytes()
    authority.sealed_root_key_path.write_bytes(other)
    with pytest.raises(RefusedError):
        authority.renew_issuing(PASSPHRASE, later)
    authority.sealed_root_key_path.write_bytes(sealed)

    authority.renew_issuing(PASSPHRASE, later)

    new = authority.issue_site(key, SiteName("a"), later).chain_pem
    for chain in (old, new, authority.coordinator_certificate_path.read_bytes()):
        verified_leaf(chain, authority.root_pem(), later)
    assert certificates_in(new)[0].not_valid_after_utc == later + timedelta(days=90)
    assert certificates_in(old)[0].not_valid_after_utc < later + timedelta(days=90)


def test_the_coordinators_certificate_is_renewed_for_its_key(
    tmp_path: Path, record: FederationRecord, now: datetime
) -> None:
    """The key stays and the certificate is new; the root's key may be away."""
    authority = Authority.create(tmp_path / "pki", record, passphrase=PASSPHRASE, now=now)
    authority.sealed_root_key_path.unlink()
    before = authority.coordinator_leaf()

    authority.renew_coordinator(now + timedelta(days=40))

    after = authority.coordinator_leaf()
    assert after.public_key() == before.public_key()
    assert after.not_valid_after_utc == now + timedelta(days=130)
