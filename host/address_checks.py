"""Tests each step of a connection from a site to an address: name, proxy, port and TLS.

Only handshakes are sent. gRPC reports "Socket closed" for an expired, a foreign and an intercepted certificate alike,
so this module reads the certificate itself.
"""

from __future__ import annotations

import base64
import errno
import re
import socket
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cryptography import x509
from cryptography.x509.oid import NameOID

from host.clock_words import COMPARE_CLOCK, SET_CLOCK, outside
from host.diagnosis import Finding, failure, fine, warning

_LONGEST_ANSWER_BYTES: Final = 8192


def taken_addresses(listen: str) -> list[str]:
    """Return the addresses of HOST:PORT on which another program already listens. A name can have several addresses.

    A server that gets only one of two addresses reports no error, and a caller of the other address reaches a stranger.
    An unknown host has no addresses.
    """
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return []
    return [str(place[0]) for family, _, _, _, place in found if _is_taken(family, place)]


def _is_taken(family: int, place: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ended connections occupy no port
            if family == socket.AF_INET6:
                own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            own.bind(place)
    except OSError as cause:  # this also happens if a name has an IPv6 address and this computer has no IPv6
        return cause.errno == errno.EADDRINUSE
    return False


@dataclass(frozen=True)
class Target:
    """The address to which a site connects, and the certificates that must be above the peer's.

    `own` is this site's chain and key, if it has them. Without them the port closes the connection after the handshake.
    `when_refused` is the remedy if no program listens on the port.
    """

    host: str
    port: int
    root_pem: str
    own: tuple[Path, Path] | None = None
    when_refused: str = "Ask the office whether the coordinator runs, and whether the port is right."

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy that receives a CONNECT request, and its login USER:PASSWORD (Basic) if it has one."""

    host: str
    port: int
    login: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Return the proxy as gRPC wants it, with the login. It is a secret."""
        return f"http://{quote(self.login, safe=':') + '@' if self.login else ''}{self}"


class _Unreachable(Exception):  # has a finding, is never shown
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


def findings(target: Target, proxy: Proxy | None, patience_seconds: float = 5.0) -> list[Finding]:
    """Check name, proxy, port and TLS of an address. The first failure ends the checks."""
    found: list[Finding] = []
    try:
        if proxy is None:
            found.append(_name(target))
        found.append(_port(target, proxy, patience_seconds))
        found.append(_who_answers(target, proxy, patience_seconds))
    except _Unreachable as stop:
        found.append(stop.finding)
    return found


def _name(target: Target) -> Finding:
    try:
        kinds = [entry[0] for entry in socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)]
    except OSError as cause:
        remedy = "Check the name in hospital.yaml and in the invitation, and the resolver of this computer."
        says = f"The name {target.host} has no address: {cause.strerror or 'unknown'}."
        raise _Unreachable(failure("D407", says, remedy)) from cause
    first = ", IPv6 first" if kinds[0] == socket.AF_INET6 and socket.AF_INET in kinds else ""
    return fine("D407", f"The name {target.host} has {len(kinds)} address{'es' * (len(kinds) != 1)}{first}.")


def _port(target: Target, proxy: Proxy | None, patience: float) -> Finding:
    if proxy is not None:
        _connected(target, proxy, patience).close()
        return fine("D408", f"The proxy {proxy} connects to {target}.")
    silent = []
    for kind, _, _, _, address in socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM):
        try:
            with socket.socket(kind, socket.SOCK_STREAM) as attempt:
                attempt.settimeout(patience)
                attempt.connect(address)
        except OSError as cause:
            silent.append((str(address[0]), _reason(cause)))
            continue
        if silent:
            others = ", ".join(host for host, _ in silent)
            says = f"{target} answers at {address[0]}, but not at {others}. Its name has all these addresses."
            return warning(
                "D409",
                says,
                "Inform the office. New connections can be slow, because they may try an address that does not answer.",
            )
        return fine("D409", f"{target} answers.")
    raise _Unreachable(_closed(target, silent))


def _closed(target: Target, silent: list[tuple[str, str]]) -> Finding:
    reasons = {reason for _, reason in silent}
    says = f"{target} does not answer: {', '.join(sorted(reasons))}."
    if reasons == {"refused"}:
        return failure("D409", says, target.when_refused)
    return failure(
        "D409", says, f"Ask the network department to allow connections from this computer to {target} over TCP."
    )


def _reason(cause: OSError) -> str:
    match cause:
        case ConnectionRefusedError():
            return "refused"
        case TimeoutError():
            return "no answer in time"
        case _:
            return cause.strerror or type(cause).__name__


def _connected(target: Target, proxy: Proxy | None, patience: float) -> socket.socket:
    """Open a TCP connection to the target. If there is a proxy, connect through the proxy."""
    place = (target.host, target.port) if proxy is None else (proxy.host, proxy.port)
    try:
        connection = socket.create_connection(place, patience)
    except OSError as cause:
        if proxy is None:
            raise _Unreachable(_closed(target, [(target.host, _reason(cause))])) from cause
        says = f"The proxy {proxy} does not answer: {_reason(cause)}."
        raise _Unreachable(
            failure("D408", says, "Correct `proxy` in hospital.yaml, or ask the administrator of the proxy.")
        ) from cause
    if proxy is not None:
        try:
            _ask_for_tunnel(connection, target, proxy)
        except _Unreachable:
            connection.close()
            raise
    return connection


def _ask_for_tunnel(connection: socket.socket, target: Target, proxy: Proxy) -> None:
    answer = b""
    try:
        login = base64.b64encode(proxy.login.encode()).decode()
        basic = f"Proxy-Authorization: Basic {login}\r\n" if proxy.login else ""
        connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{basic}\r\n".encode("ascii"))
        while b"\r\n\r\n" not in answer and len(answer) < _LONGEST_ANSWER_BYTES:
            answer += (more := connection.recv(1))
            if not more:
                break
    except OSError:
        answer = b""
    words = answer.split(b"\r\n", 1)[0].split(b" ")
    if len(words) < 2 or not words[1].startswith(b"2"):
        status = words[1].decode("ascii", "replace")[:3] if len(words) > 1 else "no answer"
        says = f"The proxy {proxy} does not connect to {target}: {status}."
        remedy = f"Ask the administrator of the proxy to allow CONNECT to {target}."
        if status == "407":
            remedy = _login_wanted(answer, proxy)
        raise _Unreachable(failure("D408", says, remedy))


def _login_wanted(answer: bytes, proxy: Proxy) -> str:
    """Return the remedy for a proxy that wants a login, from the head of its answer."""
    kinds = {kind.lower() for kind in re.findall(rb"(?im)^proxy-authenticate:[ \t]*([a-z]+)", answer)}
    if kinds and b"basic" not in kinds:
        return (
            "The proxy wants a login of a kind that this program does not have, such as Negotiate, NTLM or Digest. Ask "
            "its administrator to let this computer connect without a login, or with user and password (Basic)."
        )
    if proxy.login:
        return "The proxy rejects user and password. Correct the file proxy-login in the agent's folder."
    return (
        "The proxy wants a login. Write USER:PASSWORD into the file proxy-login in the agent's folder (state/agent), "
        "with mode 0600 and the agent's account as its owner."
    )


def _who_answers(target: Target, proxy: Proxy | None, patience: float) -> Finding:
    """Check whether the certificate at this address belongs to the coordinator of this federation."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    shown = _shown(target, proxy, patience, anybody)
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ours.load_verify_locations(cadata=target.root_pem)
    try:
        _shown(target, proxy, patience, ours)
    except ssl.SSLCertVerificationError as refusal:
        return _unproven(target, shown, refusal.verify_code, datetime.now(UTC))
    return fine("D410", f"{target} has a certificate of this federation's authority.")


def _shown(target: Target, proxy: Proxy | None, patience: float, context: ssl.SSLContext) -> x509.Certificate:
    context.set_alpn_protocols(["h2"])
    if target.own is not None:
        context.load_cert_chain(*target.own)
    with _connected(target, proxy, patience) as connection:
        try:
            with context.wrap_socket(connection, server_hostname=target.host) as secure:
                return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")
        except ssl.SSLCertVerificationError:
            raise
        except (OSError, ValueError) as cause:
            says = f"The program that answers at {target} does not use TLS."
            remedy = "Check the port. If it is right, a device on the way blocks TLS. Ask the network department."
            raise _Unreachable(failure("D410", says, remedy)) from cause


def _unproven(target: Target, shown: x509.Certificate, code: int, now: datetime) -> Finding:
    match code:
        case 10:  # OpenSSL: it has expired
            restart = "If the clock is right, ask the office to run `pki renew` and to start the coordinator."
            return failure(
                "D410", f"The coordinator's certificate has expired. {_times(shown, now)}", f"{COMPARE_CLOCK} {restart}"
            )
        case 9:  # not yet valid
            return failure("D410", f"The coordinator's certificate is not valid yet. {_times(shown, now)}", SET_CLOCK)
        case 62 | 64:  # another name, another address
            says = f"The certificate at {target} is from this federation, but not for this name."
            return failure(
                "D410",
                says,
                "Use the name in the invitation, or ask the office for a certificate with the name that you use.",
            )
        case _:
            says = (
                f"TLS is intercepted: the certificate at {target} is from {_issuer(shown)}, not from this federation's "
                "authority."
            )
            remedy = f"Ask the network department to exempt {target} from TLS inspection. Until then nothing is sent."
            return failure("D410", says, remedy)


def _times(certificate: x509.Certificate, now: datetime) -> str:
    return outside(certificate.not_valid_before_utc, certificate.not_valid_after_utc, now)


def _issuer(certificate: x509.Certificate) -> str:
    """Return the issuer's name as plain text on one line."""
    for kind in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME):
        for attribute in certificate.issuer.get_attributes_for_oid(kind):
            return ascii(str(attribute.value))[:80]
    return "an authority without a name"
