"""Reads small JSON objects strictly, because a stranger may have written the file.

An object has exactly the expected keys, each once and of exactly the expected type, in at most 64 KiB of UTF-8.
Everything else is a three-sentence error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from protos.errors import ConfigurationError

LARGEST_BYTES = 64 * 1024

Kind = type[str] | type[int] | type[bool]


def encode(values: Mapping[str, str | int | bool]) -> bytes:
    """Encode an object as readable UTF-8 JSON with a final newline."""
    return (json.dumps(dict(values), indent=2) + "\n").encode("utf-8")


def decode(data: bytes, *, kinds: Mapping[str, Kind], subject: str) -> dict[str, str | int | bool]:
    """Read one flat JSON object.

    Args:
        kinds: the required keys, and the type of each.
        subject: the kind of file, for the error, such as "invitation".

    Raises:
        ConfigurationError: the bytes are not exactly such an object.
    """
    if len(data) > LARGEST_BYTES:
        raise _wrong(subject, f"it has {len(data)} bytes, more than {LARGEST_BYTES}")
    try:
        value: object = json.loads(data.decode("utf-8"), object_pairs_hook=_without_repetition)
    except UnicodeDecodeError as cause:
        raise _wrong(subject, "it is not UTF-8 text") from cause
    except _RepeatedKeyError as cause:
        raise _wrong(subject, "a key occurs twice") from cause
    except (ValueError, RecursionError) as cause:
        raise _wrong(subject, "it is not JSON") from cause
    if not isinstance(value, dict):
        raise _wrong(subject, "it is not one JSON object")
    for key in kinds:
        if key not in value:
            raise _wrong(subject, f"the key {key} is missing")
    if len(value) != len(kinds):
        raise _wrong(subject, "it has an unknown key")
    return {key: _of_kind(value[key], kind, key, subject) for key, kind in kinds.items()}


class _RepeatedKeyError(ValueError):
    """Raised if a JSON object has a key twice, because two programs could then read different values."""


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _RepeatedKeyError
    return found


def _of_kind(value: object, kind: Kind, key: str, subject: str) -> str | int | bool:
    # `type(...) is` is needed, because True is an int to isinstance.
    if type(value) is not kind or not isinstance(value, str | int | bool):
        raise _wrong(subject, f"the value of {key} is not of type {kind.__name__}")
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _wrong(subject, f"the value of {key} holds half of a character")
    return value


def _wrong(subject: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        what=f"This is not a usable {subject}: {reason}.",
        consequence="The file was not used, and nothing was written or sent.",
        remedy=f"Ask the sender for a new copy of the original {subject}.",
    )
