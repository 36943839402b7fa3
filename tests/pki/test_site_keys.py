"""A site's keys are created once, stay private, and accept only the site's own certificate."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from pki import certificates
from pki.authority import Authority
from pki.names import FederationName, SiteName
from protos.errors import ConfigurationError, OperatorError, RefusedError
from tests.pki.whole_site import SiteKeys

MARY = SiteName("st-mary")


def _chain_for(authority: Authority, request: bytes, now: datetime, site: SiteName = MARY) -> bytes:
    return authority.issue_site(certificates.requested_key(request), site, now).chain_pem


def enrolled(authority: Authority, directory: Path, now: datetime) -> SiteKeys:
    """A site with its certificate."""
    keys = SiteKeys.create(directory)
    chain = _chain_for(authority, keys.signing_request(), now)
    keys.install(chain, authority.root_pem(), site=MARY, federation="heart", now=now)
    return keys


def test_keys_are_made_once_and_are_private(tmp_path: Path) -> None:
    """A second `create` changes nothing; a key that a crash left missing is made; all have mode 0600."""
    keys = SiteKeys.create(tmp_path / "keys")
    before = keys.tls_key_path.read_bytes(), keys.identity_key_path.read_bytes()
    with pytest.raises(ConfigurationError):
        SiteKeys.create(tmp_path / "keys")
    assert (keys.tls_key_path.read_bytes(), keys.identity_key_path.read_bytes()) == before
    keys.identity_key_path.unlink()
    assert not SiteKeys.exists(tmp_path / "keys")

    SiteKeys.create(tmp_path / "keys")

    assert keys.tls_key_path.read_bytes() == before[0]
    assert {path.stat().st_mode & 0o777 for path in keys.directory.iterdir()} == {0o600}
    assert keys.directory.stat().st_mode & 0o777 == 0o700


def test_only_our_certificate_is_installed(authority: Authority, tmp_path: Path, now: datetime) -> None:
    """Another key, name, federation, root or time is refused and nothing is written."""
    keys = SiteKeys.create(tmp_path / "keys")
    good = _chain_for(authority, keys.signing_request(), now)
    other_key = _chain_for(authority, certificates.signing_request(certificates.new_tls_key()), now)
    other_name = _chain_for(authority, keys.signing_request(), now, SiteName("st-luke"))
    root = authority.root_pem()
    forged = certificates.certificate_pem(
        certificates.root_certificate(certificates.new_tls_key(), FederationName("heart"), now)
    )

    for chain, root_pem, federation, at in (
        (other_key, root, "heart", now),
        (other_name, root, "heart", now),
        (good, root, "lung", now),
        (good, forged, "heart", now),
        (good, root, "heart", now + timedelta(days=91)),
        (authority.coordinator_certificate_path.read_bytes(), root, "heart", now),
        (b"", root, "heart", now),
    ):
        with pytest.raises(RefusedError):
            keys.install(chain, root_pem, site=MARY, federation=federation, now=at)
    assert not keys.is_enrolled()
    keys.install(good, root, site=MARY, federation="heart", now=now)
    assert SiteKeys.load(tmp_path / "keys").is_enrolled()


def test_damaged_or_exchanged_files_are_explained(authority: Authority, tmp_path: Path, now: datetime) -> None:
    """A foreign TLS key, a damaged identity key and a readable key each stop the program with a reason."""
    keys = enrolled(authority, tmp_path / "keys", now)
    kept = keys.tls_key_path.read_bytes(), keys.identity_key_path.read_bytes()
    for path, data in (
        (keys.tls_key_path, certificates.key_to_pem(certificates.new_tls_key())),
        (keys.tls_key_path, b""),
        (keys.identity_key_path, b"nonsense"),
        (keys.identity_key_path, kept[0]),
    ):
        path.write_bytes(data)
        with pytest.raises(OperatorError):
            SiteKeys.load(keys.directory)
        keys.tls_key_path.write_bytes(kept[0])
        keys.identity_key_path.write_bytes(kept[1])
    SiteKeys.load(keys.directory)
    keys.identity_key_path.chmod(0o644)
    with pytest.raises(ConfigurationError):
        SiteKeys.load(keys.directory)


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_a_renewal_survives_a_crash_at_every_step(
    authority: Authority, tmp_path: Path, now: datetime, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    """After a power cut before, between or after the two moves, key and certificate fit each other."""
    keys = enrolled(authority, tmp_path / "keys", now)
    old = keys.leaf()
    chain = _chain_for(authority, keys.next_signing_request(), now)
    done = 0
    real = Path.replace

    def cut(self: Path, target: Path) -> Path:
        nonlocal done
        if self.suffix == ".next" and done == moves:
            raise KeyboardInterrupt
        done += self.suffix == ".next"
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", cut)
        try:
            keys.install_next(chain, site=MARY, federation="heart", now=now)
        except KeyboardInterrupt:
            assert moves < 2

    assert (SiteKeys.load(keys.directory).leaf() == old) is (moves == 0)
    again = _chain_for(authority, keys.next_signing_request(), now)
    keys.install_next(again, site=MARY, federation="heart", now=now)
    renewed = SiteKeys.load(keys.directory)
    assert renewed.leaf() != old
    assert {path.name for path in keys.directory.iterdir()} == {"tls.key", "tls.crt", "root.crt", "identity.key"}
