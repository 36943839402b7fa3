"""Reads the requests that a browser sends to the console, and builds the responses, by functions on bytes.

A request that no page of this console sends is refused. The head is checked before a byte of the body is read. The
rules:

* the host must equal the console's own address, so no other name can be made to point here;
* requests that another page started are refused: forms, frames and pictures;
* a form names its origin and its length, and has at most LONGEST_FORM_BYTES;
* no response may be framed or cached, or load anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from host.http_answers import REASONS, source_digest
from site_agent.console.console_links import COOKIE
from site_agent.state_folders import is_run_name

LONGEST_FORM_BYTES: Final = 8192
_MOST_FIELDS: Final = 16
_FORM: Final = "application/x-www-form-urlencoded"
# If one of these fields occurred twice, two programs could use two different values of the field.
_SINGLE: Final = frozenset(
    {"host", "origin", "content-length", "content-type", "sec-fetch-site", "sec-fetch-dest", "transfer-encoding"}
)
# Browsers send these fields when they load a page in advance, before anybody opens it. Such a request must not use up a
# link.
_AHEAD: Final = ("sec-purpose", "purpose", "x-purpose", "x-moz")
_NO_STYLE: Final = "'none'"
_STYLE: Final = re.compile(r"<style>(.*?)</style>", re.DOTALL)


class RefusedRequest(Exception):
    """Raised for a request that the console refuses, with the HTTP status and the text for the person."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


@dataclass(frozen=True)
class Head:
    """The head of a request: all of the request except its body.

    Attributes:
        is_form: whether it is a form; otherwise it requests a page.
        path: the received path. It is not decoded and never used to find a file.
        cookies: every value under the console's name.
        body_bytes: the length of the body according to the head.
    """

    is_form: bool
    path: str
    cookies: tuple[str, ...]
    body_bytes: int


def read_head(raw: bytes, host: str) -> Head:
    """Read and check the first part (head) of a browser's request.

    Args:
        raw: the bytes up to its empty line, at most as long as the server reads.
        host: the console's own address.

    Raises:
        RefusedRequest: no page of this console has sent it.
    """
    first, *lines = raw.split(b"\r\n\r\n", 1)[0].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[1].startswith("/") or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise RefusedRequest(400, "This is not a request that the console understands.")
    fields = _fields(lines)
    if fields.get("host") != [host]:
        raise RefusedRequest(421, f"The console answers only as http://{host}/. Use the link that it printed.")
    if words[0] not in ("GET", "POST"):
        raise RefusedRequest(405, "The console answers GET and POST only.")
    _require_own_page(fields, host, is_form=words[0] == "POST")
    size = _form_bytes(fields) if words[0] == "POST" else 0
    return Head(words[0] == "POST", words[1], tuple(_cookies(fields)), size)


def read_form(body: bytes) -> dict[str, str]:
    """Return the fields of a form that a browser sent. Raises RefusedRequest: no form, or a field occurs twice."""
    try:
        pairs = parse_qsl(body.decode("ascii"), True, True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError as cause:
        raise RefusedRequest(400, "This is not a form of the console.") from cause
    if len(dict(pairs)) < len(pairs):
        raise RefusedRequest(400, "A field of the form came twice.")
    if any(ord(letter) < 32 or letter == "\x7f" for _, value in pairs for letter in value):
        raise RefusedRequest(400, "A field of the form has a control character.")
    found = dict(pairs)
    if found.get("run") and not is_run_name(found["run"]):
        raise RefusedRequest(400, "This is not the name of a run. Choose a run from the list.")
    return found


def answer(status: int, content: str, *, is_page: bool = False, fields: tuple[str, ...] = ()) -> bytes:
    """Return a complete HTTP response, with a web page or with a line of plain text.

    Args:
        status: of HTTP.
        content: the page; a browser uses only its own styles.
        is_page: whether it is HTML.
        fields: further lines of the head.
    """
    styles = " ".join(f"'{source_digest(style)}'" for style in _STYLE.findall(content)) if is_page else ""
    policy = (
        f"default-src 'none'; style-src {styles or _NO_STYLE}; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    body = content.encode(errors="replace")
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}",
        f"Content-Type: text/{'html' if is_page else 'plain'}; charset=utf-8",
        f"Content-Length: {len(body)}",
        f"Content-Security-Policy: {policy}",
        "X-Frame-Options: DENY",
        "X-Content-Type-Options: nosniff",
        "Cross-Origin-Opener-Policy: same-origin",
        "Cross-Origin-Resource-Policy: same-origin",
        "Referrer-Policy: same-origin",
        "Cache-Control: no-store",
        "Connection: close",
        *fields,
    )
    return "\r\n".join((*head, "", "")).encode("ascii") + body


def go_to(path: str, *fields: str) -> bytes:
    """Return an HTTP response that sends the browser to another page of the console."""
    return answer(303, "", fields=(f"Location: {path}", *fields))


def _fields(lines: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise RefusedRequest(400, "This is not a request that the console understands.")
        found.setdefault(name.lower(), []).append(value.strip())
    if any(len(found.get(name, ())) > 1 for name in _SINGLE):
        raise RefusedRequest(400, "A line of the request's head came twice.")
    return found


def _require_own_page(fields: dict[str, list[str]], host: str, *, is_form: bool) -> None:
    # A browser reports which site caused a request, and for what the response is used. If a person types a link into
    # the address bar, `sec-fetch-site` is "none".
    sites = ("same-origin",) if is_form else ("same-origin", "none")
    is_foreign = fields.get("sec-fetch-site", ["same-origin"])[0] not in sites
    is_embedded = fields.get("sec-fetch-dest", ["document"])[0] != "document"
    is_ahead = any(name in fields for name in _AHEAD)
    if is_foreign or is_embedded or is_ahead:
        raise RefusedRequest(403, "Another page asked for this. Copy the console's link into the address bar.")
    if is_form and fields.get("origin") != [f"http://{host}"]:
        raise RefusedRequest(403, "This form was not sent by a page of this console.")


def _form_bytes(fields: dict[str, list[str]]) -> int:
    if fields.get("content-type", [""])[0].split(";")[0].strip().lower() != _FORM:
        raise RefusedRequest(415, "This is not a form of the console.")
    length = fields.get("content-length", [""])[0]
    if "transfer-encoding" in fields or not re.fullmatch("[0-9]{1,12}", length):
        raise RefusedRequest(411, "The form does not name its length.")
    if int(length) > LONGEST_FORM_BYTES:
        raise RefusedRequest(413, f"The form has {length} bytes. The console reads {LONGEST_FORM_BYTES}.")
    return int(length)


def _cookies(fields: dict[str, list[str]]) -> list[str]:
    pairs = (pair.strip().partition("=") for line in fields.get("cookie", ()) for pair in line.split(";"))
    return [value for name, _, value in pairs if name == COOKIE]
