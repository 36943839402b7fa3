"""Stores the agent's TLS key and certificates, and replaces them when the gate process commands this.

The gate decides and records all changes of a certificate. The agent checks each order again by the rules of
pki/site_keys.py. So no order can install a certificate for another key, site or root.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from host import secret_files
from pki.names import Address, site_name
from pki.site_keys import SiteKeys
from protos.errors import ConfigurationError
from site_agent.agent.connection import Credentials, Proxy
from site_agent.framed_messages import packed, unpacked
from site_agent.gate_socket import Install, Shown

ADDRESSES: Final = "federation.json"
PROXY_LOGIN: Final = "proxy-login"


def proxy_of(directory: Path, address: str) -> Proxy | None:
    """Return the proxy at HOST:PORT with its login, which the file `proxy-login` may have. None without address.

    Raises:
        OperatorError: other accounts can read the file, or it has no login.
    """
    path, login = directory / PROXY_LOGIN, ""
    if address and path.exists():
        login = secret_files.read_secret(path).decode("utf-8-sig", "replace").strip()
        if ":" not in login or "\ufffd" in login or len(login.splitlines()) > 1:
            raise ConfigurationError(
                what=f"The file {path} is not one line USER:PASSWORD in UTF-8.",
                consequence="No connection was made, and nothing was sent.",
                remedy="Correct the file, then restart site-agent.",
            )
    return Proxy(Address.parse(address), login) if address else None


class KeptCertificates:
    """Reads and changes the keys and certificates in a site's folder `agent`."""

    def __init__(self, directory: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Load the keys, or create them in a new folder with mode 0700. `now` returns aware times."""
        self._now = now
        exists = SiteKeys.exists(directory)
        self._keys = SiteKeys.load(directory) if exists else SiteKeys.create(directory)

    def shown(self) -> Shown:
        keys, addresses = self._keys, self._addresses()
        paths = (keys.certificate_path, keys.root_certificate_path)
        parts = [secret_files.read_public(path) if keys.is_enrolled() else b"" for path in paths]
        return Shown(addresses.get("coordinator", ""), addresses.get("enrolment", ""), packed(parts))

    def credentials(self) -> Credentials:
        keys = self._keys
        return Credentials(
            key=secret_files.read_secret(keys.tls_key_path),
            chain=secret_files.read_public(keys.certificate_path),
            root=secret_files.read_public(keys.root_certificate_path),
        )

    def proxy(self, address: str) -> Proxy | None:
        return proxy_of(self._keys.directory, address)

    def root(self) -> bytes:
        return secret_files.read_public(self._keys.root_certificate_path)

    def address(self, which: str) -> str:
        """Return the stored network address of `coordinator` or `enrolment`, or an empty text if none is stored."""
        return self._addresses().get(which, "")

    def make(self, key: str) -> bytes:
        """Return a certificate signing request (PEM) for the `first` or `next` TLS key. See gate_socket.Make."""
        return self._keys.signing_request() if key == "first" else self._keys.next_signing_request()

    def install(self, order: Install) -> None:
        """Start to use a new certificate. Raise RefusedError if it is not for this key, site and root."""
        (chain, root), now, site = unpacked(order.payload, 2), self._now(), site_name(order.site)
        if order.coordinator:
            # The addresses of an invitation are written first, because a certificate without them could not be used
            # after a power cut.
            addresses = {"coordinator": order.coordinator, "enrolment": order.enrolment}
            secret_files.write_public(self._keys.directory / ADDRESSES, json.dumps(addresses).encode())
        if order.key == "first":
            self._keys.install(chain, root, site=site, federation=order.federation, now=now)
        else:
            self._keys.install_next(chain, site=site, federation=order.federation, now=now)

    def _addresses(self) -> dict[str, str]:
        place = self._keys.directory / ADDRESSES
        if not place.exists():
            return {}
        found: dict[str, Any] = json.loads(secret_files.read_public(place))  # Any: every type that JSON has
        return {name: text for name, text in found.items() if isinstance(text, str)}
