"""Makes the responses to HTTP requests of a monitoring system, as bytes. Each program can use its own event loop.

Only GET of known paths is answered. A request changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

LONGEST_REQUEST_BYTES: Final = 8192
PATIENCE_SECONDS: Final = 5.0
REASONS: Final = {
    200: "OK", 303: "See Other", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    409: "Conflict", 411: "Length Required", 413: "Content Too Large", 415: "Unsupported Media Type",
    421: "Misdirected Request", 500: "Internal Server Error", 503: "Not Ready",
}  # fmt: skip


@dataclass(frozen=True)
class Page:
    """An HTTP response: its status, media type and content."""

    status: int
    kind: str
    content: bytes


def text(status: int, words: str) -> Page:
    """Return a page with one line of text."""
    return Page(status, "text/plain; charset=utf-8", f"{words}\n".encode())


def answer(request: bytes, pages: Mapping[str, Callable[[], Page]]) -> bytes:
    """Return the response to an HTTP request, which was read up to its empty line. `pages` has a function per path."""
    page = _page(request, pages)
    head = (
        f"HTTP/1.1 {page.status} {REASONS[page.status]}\r\nContent-Type: {page.kind}\r\n"
        f"Content-Length: {len(page.content)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + page.content


def is_asked_here(request: bytes) -> bool:
    """Return whether the Host header of a request is this computer's own name or address.

    A web page from elsewhere can have a name that points to this computer. A browser then sends that name.
    """
    hosts = _hosts(request)
    return bool(hosts) and all(map(_is_loopback, hosts))


def source_digest(source: str) -> str:
    """Return the digest, such as `sha256-...`, with which a page's policy permits one style or one script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _hosts(request: bytes) -> list[bytes]:
    fields = (line.partition(b":") for line in request.split(b"\r\n")[1:])
    return [value.strip().lower() for name, _, value in fields if name.strip().lower() == b"host"]


def _is_loopback(host: bytes) -> bool:
    name = host if host.endswith(b"]") else host.rpartition(b":")[0] or host
    return name in (b"localhost", b"127.0.0.1", b"[::1]")


def _page(request: bytes, pages: Mapping[str, Callable[[], Page]]) -> Page:
    words = request.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return text(400, "This request is not supported here.")
    if words[0] != b"GET":
        return text(405, "Only GET is answered here.")
    path = words[1].split(b"?", 1)[0].decode("ascii", "replace")
    make = pages.get(path)
    return make() if make else text(404, f"There are {', '.join(sorted(pages))}.")
