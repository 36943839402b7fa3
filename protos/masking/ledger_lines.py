"""Reads and writes the lines of a ledger: JSON with a checksum over all earlier lines."""

from __future__ import annotations

import json
from typing import Any

from blake3 import blake3

from protos.masking.answered_sets import Listing


def check_of(text: str) -> str:
    """Return the checksum of the last complete line."""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return str(json.loads(lines[-1])["check"])


def checked(before: str, content: dict[str, Any]) -> tuple[str, str]:
    """Return a line and its checksum, which is computed from the previous checksum and the content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    check = blake3(f"{before} {text}".encode()).hexdigest()[:32]
    return check, json.dumps(content | {"check": check}, sort_keys=True, separators=(",", ":")) + "\n"


def uncheck(before: str, line: str) -> tuple[str, dict[str, Any]]:  # Any: every type that JSON has
    """Return the checksum of a line, and its content.

    Raises:
        ValueError: the line was changed, or does not follow the previous line.
    """
    content = json.loads(line)
    given = content.pop("check")
    check, written = checked(before, content)
    if check != given or written != line + "\n":
        raise ValueError("a line that was changed, or does not follow on the one before")
    return check, content


def listing_out(listing: Listing | None) -> dict[str, Any] | None:
    """Convert a list of contributing sites to JSON values."""
    if listing is None:
        return None
    return {
        "identities": dict(listing.identities),
        "kinds": {kind: sorted(names) for kind, names in listing.kinds.items()},
    }


def listing_in(content: dict[str, Any] | None) -> Listing | None:
    """Convert JSON values to a list of contributing sites. Raises ValueError if a site has no identity."""
    if content is None:
        return None
    kinds = {kind: frozenset(names) for kind, names in content["kinds"].items()}
    if not all(names <= content["identities"].keys() for names in kinds.values()):
        raise ValueError("a contributor without an identity")
    return Listing(content["identities"], kinds)


def digest(text: str) -> bytes:
    """Decode a digest of 32 bytes from hexadecimal text. Raises ValueError if the text is not such a digest."""
    found = bytes.fromhex(text)
    if len(found) != 32:
        raise ValueError("a digest of another size")
    return found


def whole(*numbers: Any) -> None:
    """Check that each value is a whole number of at least 0. Raises ValueError if a value is not."""
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a count that is no whole number")
