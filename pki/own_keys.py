"""Requests and installs a site's certificate, if the hospital's own certificate authority issues it.

tls.key.requested waits until the hospital's people have issued a certificate, which can take weeks. tls.crt.requested
is that certificate, until the coordinator has accepted it. The rules:

* the private key is made here and never leaves. Only the signing request does;
* the current key and certificate stay unchanged until the coordinator has accepted the new certificate;
* a certificate is stored only if it is for the waiting key, in this site's name, below the authority in its file.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from host.durable import sync_folder
from pki import certificates, store
from pki.certificate_chain import certificates_in
from pki.names import FederationName, SiteName, federation_name, site_uri
from pki.own_authority import OwnCertificate, own_certificate_in
from pki.site_keys import SiteKeys
from protos.errors import ConfigurationError, RefusedError


def waiting_request(keys: SiteKeys, site: SiteName, *, has_new_key: bool) -> bytes:
    """Return a signing request (PEM) for the site's next key. Create the key if it is missing or `has_new_key` is true.

    Raises:
        ConfigurationError: a certificate for the key already waits for the coordinator.
    """
    if staged_chain(keys) is not None and not has_new_key:
        raise ConfigurationError(
            what="A certificate of this site's own authority waits until the coordinator accepts it.",
            consequence="This certificate is unchanged, and no request was made.",
            remedy="Start `site-agent join`, or run `site-agent renew`. To use another key instead, add --new-key.",
        )
    place = _requested(keys.tls_key_path)
    if has_new_key:
        _forget(keys)
    if not place.exists():
        store.write_secret(place, certificates.key_to_pem(certificates.new_tls_key()), replace=False)
    return signing_request(keys, site)


def signing_request(keys: SiteKeys, site: SiteName) -> bytes:
    """Return a signing request (PEM) for the site's next key, with everything that the certificate must contain."""
    key = certificates.key_from_pem(store.read_secret(_requested(keys.tls_key_path)))
    uri = x509.UniformResourceIdentifier(site_uri(keys.federation(), site))
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)  # only signatures
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)]))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def stage(keys: SiteKeys, chain_pem: bytes, site: SiteName, now: datetime) -> OwnCertificate:
    """Store a certificate from the hospital's own authority until the coordinator accepts this certificate.

    Args:
        chain_pem: the certificate first, then any intermediate authorities, and the authority last.
        now: an aware time.

    Raises:
        ConfigurationError: no key waits for a certificate.
        RefusedError: the certificate is not for that key and this site, or not below the last certificate in the file.
    """
    place = _requested(keys.tls_key_path)
    if not place.exists():
        raise ConfigurationError(
            what="This site has no new key that waits for a certificate.",
            consequence="Nothing was stored.",
            remedy="Create a request first: `site-agent request-certificate`.",
        )
    federation, chain = federation_name(keys.federation()), certificates_in(chain_pem)
    found = own_certificate_in(chain, chain[-1:], federation, now)
    key = certificates.key_from_pem(store.read_secret(place))
    if found is None or certificates.is_issuing(found.authority, federation):
        raise _refused("the file does not end with the authority that has issued it")
    if found.identity.name != site:
        raise _refused(f"it is in the name of {found.identity.name}")
    if found.leaf.public_key() != key.public_key():
        raise _refused("it is not for the key that waits for a certificate")
    store.write_public(_requested(keys.certificate_path), found.chain_pem)
    return found


def staged_chain(keys: SiteKeys) -> bytes | None:
    """Return the certificate chain (PEM) that the coordinator has not accepted yet, or None if no chain waits."""
    place = _requested(keys.certificate_path)
    return store.read_public(place) if place.exists() else None


def waiting_key_path(keys: SiteKeys) -> Path:
    """Return the path of the TLS key for which a certificate was requested, mode 0600. The file may not exist."""
    return _requested(keys.tls_key_path)


def put_in_force(keys: SiteKeys) -> None:
    """Start to use the site's next TLS key and its certificate, after the coordinator has accepted the certificate.

    A power cut leaves the old or the new pair. The old pair is kept until the new one has worked.
    """
    chain = store.read_public(_requested(keys.certificate_path))
    # After a power cut the chain may already be in use. A second exchange would store it as its own predecessor.
    if chain != store.read_public(keys.certificate_path):
        keys.exchange(_requested(keys.tls_key_path), chain)
    _forget(keys)


def is_of_own_authority(keys: SiteKeys) -> bool:
    """Return whether the hospital's own authority issued the current certificate."""
    chain = certificates_in(store.read_public(keys.certificate_path))
    return not certificates.is_issuing(chain[-1], FederationName(keys.federation()))


def authority_of(keys: SiteKeys) -> x509.Certificate:
    """Return the hospital's own authority that issued the current certificate."""
    return certificates_in(store.read_public(keys.certificate_path))[-1]


def _forget(keys: SiteKeys) -> None:
    # The certificate is removed first, because it is useless without its key.
    for place in (keys.certificate_path, keys.tls_key_path):
        _requested(place).unlink(missing_ok=True)
    sync_folder(keys.directory)


def _requested(place: Path) -> Path:
    return place.with_name(f"{place.name}.requested")


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"The certificate was not accepted: {reason}.",
        consequence="The certificate was not stored. The current key and certificate are unchanged.",
        remedy="Send the file from `site-agent request-certificate` to the hospital's authority. Install the whole "
        "chain of certificates that the authority returns.",
    )
