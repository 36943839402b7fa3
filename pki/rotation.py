"""Replaces a federation's root key during operation: sites trust the new root before the authority uses it.

The change has three steps, possibly weeks apart. No program is stopped:

* begin: the next root and its issuing key are made, and the present root signs the next one. Each site receives the
  next root on its stream and trusts both from then on;
* complete: the next authority issues from now on. Coordinator and sites still accept certificates of the previous one;
* end: every site has a certificate of the new authority, and the old root is no longer trusted.

The site itself decides what it trusts (`certificate_chain.trusted_after`). The coordinator does not have the root key,
so it cannot make a site trust another root.
"""

from __future__ import annotations

from datetime import datetime

from host.durable import sync_folder
from pki import certificates, store
from pki.authority import Authority
from pki.certificate_chain import certificates_in
from pki.register import Register
from pki.sealed_key import seal
from protos.errors import ConfigurationError


def begin(authority: Authority, passphrase: str, next_passphrase: str, now: datetime) -> None:
    """Create the next root authority. The current authority continues to issue certificates.

    Raises:
        ConfigurationError: a change is already in progress, or the sealed root key is not here.
        RefusedError: the passphrase does not open the sealed key.
    """
    if authority.is_changing():
        raise _under_way("begun")
    root = authority.unsealed_root(passphrase)
    next_key, issuing_key = certificates.new_tls_key(), certificates.new_tls_key()
    next_root = certificates.root_certificate(next_key, authority.federation, now)
    next_issuer = certificates.Issuer(next_root, next_key)
    issuing = certificates.issuing_certificate(issuing_key.public_key(), next_issuer, authority.federation, now)
    vouching = certificates.vouching_certificate(next_root, next_key, root, now)
    sealed = seal(certificates.key_to_pem(next_key), next_passphrase)
    store.write_secret(authority.directory / "next-root.key.sealed", sealed, replace=True)
    store.write_secret(authority.directory / "next-issuing.key", certificates.key_to_pem(issuing_key), replace=True)
    store.write_public(authority.directory / "next-issuing.crt", certificates.certificate_pem(issuing))
    store.write_public(authority.vouching_path, certificates.certificate_pem(vouching))
    # This file is written last, because its presence means that all the others exist.
    store.write_public(authority.next_root_path, certificates.certificate_pem(next_root))


def complete(authority: Authority, now: datetime) -> None:
    """Let the next authority issue certificates from now on. Raises ConfigurationError without a next authority."""
    if not authority.next_root_path.exists():
        raise _not_begun()
    if not authority.previous_root_path.exists():
        store.write_public(authority.previous_root_path, authority.root_pem())
    for before, after in (
        ("next-issuing.key", authority.issuing_key_path),
        ("next-issuing.crt", authority.issuing_certificate_path),
        ("next-root.key.sealed", authority.sealed_root_key_path),
    ):
        place = authority.directory / before
        if place.exists():
            with store.explained(place, "put in force"):
                place.replace(after)
                sync_folder(authority.directory)
    authority.renew_coordinator(now)
    with store.explained(authority.next_root_path, "put in force"):
        authority.next_root_path.replace(authority.root_certificate_path)
        sync_folder(authority.directory)


def waiting(authority: Authority, register: Register) -> tuple[str, ...]:
    """Return the sites whose newest certificate is from an earlier issuing authority, sorted.

    A site with its own authority is not listed, because the federation issues it no certificate.
    """
    issuing = certificates_in(store.read_public(authority.issuing_certificate_path))[0]
    above = {
        site.name: certificates_in(register.newest_chain(site.name))[-1]
        for site in register.sites()
        if site.accepted_certificates
    }
    return tuple(
        name for name, one in above.items() if one != issuing and certificates.is_issuing(one, authority.federation)
    )


def end(authority: Authority, register: Register) -> None:
    """Stop trusting the old root.

    Raises:
        ConfigurationError: the change is not complete, or a site still has a certificate of the old authority.
    """
    if authority.next_root_path.exists() or not authority.previous_root_path.exists():
        raise _under_way("completed") if authority.next_root_path.exists() else _not_begun()
    late = waiting(authority, register)
    if late:
        raise ConfigurationError(
            what=f"These sites still have certificates of the old authority: {', '.join(late)}.",
            consequence="The old root certificate is still trusted, and every site remains a member.",
            remedy="Wait until these sites renew their certificates by themselves, or revoke the sites that no longer "
            "take part.",
        )
    for place in (authority.previous_root_path, authority.vouching_path):
        place.unlink(missing_ok=True)
    sync_folder(authority.directory)


def _under_way(step: str) -> ConfigurationError:
    return ConfigurationError(
        what="This step of the root key's replacement is not possible now. This step needs a replacement in the "
        f"state {step}, or no replacement.",
        consequence="Nothing was changed.",
        remedy="`pki rotate status` shows the next step.",
    )


def _not_begun() -> ConfigurationError:
    return ConfigurationError(
        what="No replacement of the root key has begun.",
        consequence="Nothing was changed.",
        remedy="Start the replacement of the root key with `pki rotate begin`.",
    )
