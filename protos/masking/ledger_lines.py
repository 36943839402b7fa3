"""The format of a ledger on a site's disk: lines of JSON, each with a check over all lines before it."""

from __future__ import annotations

import json
from typing import Any

from blake3 import blake3

from protos.masking.answered_sets import Listing


def check_of(text: str) -> str:
    """Return the check of the last complete line."""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return str(json.loads(lines[-1])["check"])


def checked(before: str, content: dict[str, Any]) -> tuple[str, str]:
    """Return the check of a line, computed from the previous check and the content, and the line itself."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    check = blake3(f"{before} {text}".encode()).hexdigest()[:32]
    return check, json.dumps(content | {"check": check}, sort_keys=True, separators=(",", ":")) + "\n"


def uncheck(before: str, line: str) -> tuple[str, dict[str, Any]]:  # Any: every type that JSON has
    """Return the content of a line and its check.

    Raises:
        ValueError: the line was changed, or does not follow the line before.
    """
    content = json.loads(line)
    given = content.pop("check")
    check, written = checked(before, content)
    if check != given or written != line + "\n":
        raise ValueError("a line that was changed, or does not follow on the one before")
    return check, content


def listing_out(listing: Listing | None) -> dict[str, Any] | None:
    """Convert a listing to JSON values."""
    if listing is None:
        return None
    return {
        "identities": dict(listing.identities),
        "kinds": {kind: sorted(names) for kind, names in listing.kinds.items()},
    }


def listing_in(content: dict[str, Any] | None) -> Listing | None:
    """Convert JSON values to a listing.

    Raises:
        ValueError: a contributing site has no identity.
    """
    if content is None:
        return None
    kinds = {kind: frozenset(names) for kind, names in content["kinds"].items()}
    if not all(names <= content["identities"].keys() for names in kinds.values()):
        raise ValueError("a contributor without an identity")
    return Listing(content["identities"], kinds)


def digest(text: str) -> bytes:
    """Return the 32 bytes of a digest that is written as text.

    Raises:
        ValueError: it is no digest.
    """
    found = bytes.fromhex(text)
    if len(found) != 32:
        raise ValueError("a digest of another size")
    return found


def whole(*numbers: Any) -> None:
    """Check that these values are counts.

    Raises:
        ValueError: one of them is no whole number from 0.
    """
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a count that is no whole number")
