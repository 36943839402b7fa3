"""The equipment between a site and its coordinator in these tests: a proxy, a device that opens TLS, a silent port."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.rehearsal.federation import Office

Serve = Callable[[socket.socket], None]


@contextmanager
def listening(serve: Serve) -> Iterator[int]:
    """A server on loopback that hands each connection to `serve` in a thread of its own; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def accept() -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            thread = threading.Thread(target=closing, args=(connection,), daemon=True)
            threads.append(thread)
            thread.start()

    def closing(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            serve(connection)

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(10)
        for thread in threads:
            thread.join(10)


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    back = threading.Thread(target=copy, args=(other, one), daemon=True)
    back.start()
    copy(one, other)
    back.join(10)


@dataclass
class ConnectProxy:
    """An HTTP proxy that supports only CONNECT and stores the requested name. It can want a login, in Base64, or always
    answer with one status."""

    login: bytes = b""
    status: bytes = b""
    asked: list[str] = field(default_factory=list)

    def __call__(self, connection: socket.socket) -> None:
        """Serve one connection."""
        request = b""
        while b"\r\n\r\n" not in request:
            if not (data := connection.recv(4096)):
                return
            request += data
        target = request.split(b" ")[1].decode()
        self.asked.append(target)
        if self.status or (self.login and b"Proxy-Authorization: Basic " + self.login not in request):
            refusal = self.status or b"407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=hospital"
            connection.sendall(b"HTTP/1.1 " + refusal + b"\r\nContent-Length: 0\r\n\r\n")
            return
        host, _, port = target.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), 5) as onwards:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            _pass_on(connection, onwards)


def _answering(context: ssl.SSLContext) -> Serve:
    context.set_alpn_protocols(["h2"])

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(1)

    return serve


def intercepting(folder: Path) -> Serve:
    """A device that answers TLS with a certificate for localhost from its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Acme Web Gateway")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    pair = folder / "device.pem"
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    pair.write_bytes(private + certificate.public_bytes(encoding))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    return _answering(context)


def intercepting_as(office: Office) -> Serve:
    """A server that shows the coordinator's own certificate, and serves nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(office.authority.coordinator_certificate_path, office.authority.coordinator_key_path)
    return _answering(context)
