"""Describes every key of a configuration in a table: type, default and bounds, and the reason for the key.

Types come from the records that check what people write, reasons from the examples. So the page cannot differ from
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

_UNITS: Final = {
    "smallest_sites": "sites",
    "largest_rounds": "rounds",
    "largest_megabytes": "1,000,000 bytes",
    "largest_clipping_range": "size of an update value",
    "lost_site_budget": "sums",
    "smallest_training_rows": "rows",
    "smallest_cell": "rows",
    "approvers": "persons",
    "largest_epsilon_per_study": "epsilon",
    "largest_epsilon_per_year": "epsilon",
    "delta": "probability",
    "keep_days": "days",
    "seed": "none",
    "test_share": "share of all rows",
    "validation_share": "share of the remaining rows",
    "prevalence": "share of patients",
    "threads": "threads",
}


@dataclass(frozen=True)
class Key:
    """One key: its dotted name and its description."""

    name: str
    kind: str
    default: str
    unit: str
    reason: str


def keys_of(model: type[BaseModel], example: Path) -> list[Key]:
    """Return all keys of a record, including those inside groups."""
    schema = model.model_json_schema()
    reasons = reasons_in(example.read_text())
    return [
        Key(name, _kind(entry, schema), _default(entry, is_required), _unit(name), _found(name, reasons))
        for name, entry, is_required in _entries(schema, schema, "")
    ]


def table_of(keys: list[Key]) -> str:
    """Return the table of the keys as Markdown."""
    rows = (f"| `{key.name}` | {key.kind} | {key.default} | {key.unit} | {key.reason} |" for key in keys)
    return "\n".join(("| key | type | default | unit | meaning, and reason to change it |", "|" + "---|" * 5, *rows))


def reasons_in(text: str) -> dict[str, str]:
    """Return for each key, such as `policy.methods`, the comment above this key in an example file."""
    found: dict[str, str] = {}
    comment: list[str] = []
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.lstrip("# ").strip())
        elif match := re.match(r"^( *)([a-z_]+):", line):
            depth = len(match[1])
            path = [*(step for step in path if step[0] < depth), (depth, match[2])]
            said = " ".join(word for word in comment if word and not word.startswith("or {"))
            if said:
                found[".".join(name for _, name in path)] = said
            comment = []
        else:
            comment = []
    return found


def _found(name: str, reasons: Mapping[str, str]) -> str:
    """Return the comment of a key, or of the group that contains the key."""
    while name:
        if name in reasons:
            return reasons[name].replace("|", "\\|")
        name = name.rpartition(".")[0]
    return ""


def _entries(
    record: Mapping[str, Any], schema: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    for name, entry in record["properties"].items():
        inner = _record_in(entry, schema)
        if inner is None:
            yield f"{prefix}{name}", entry, name in record.get("required", ())
        else:
            yield from _entries(inner, schema, f"{prefix}{name}.")


def _resolved(entry: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return schema["$defs"][entry["$ref"].rsplit("/", 1)[-1]] if "$ref" in entry else entry


def _record_in(entry: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for choice in entry.get("anyOf", (entry,)):
        found = _resolved(choice, schema)
        if "properties" in found:
            return found
    return None


def _kind(entry: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    choices = [_one_kind(_resolved(choice, schema), schema) for choice in entry.get("anyOf", (entry,))]
    return " or ".join(choice for choice in choices if choice)


def _one_kind(entry: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "const" in entry:
        return f"`{entry['const']}`"
    if "enum" in entry:
        return " or ".join(f"`{word}`" for word in entry["enum"])
    match entry.get("type"):
        case "array":
            return f"list of {_kind(entry.get('items', {}), schema)}"
        case "integer" | "number" as kind:
            return {"integer": "whole number", "number": "number"}[kind] + _bounds(entry)
        case "boolean":
            return "`true` or `false`"
        case "string":
            return "text"
        case _:
            return ""


def _bounds(entry: Mapping[str, Any]) -> str:
    words = (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"), ("exclusiveMaximum", "below"))
    said = [f"{word} {entry[name]:.12g}" for name, word in words if name in entry]
    return f", {' '.join(said)}" if said else ""


def _default(entry: Mapping[str, Any], is_required: bool) -> str:
    if is_required:
        return "required"
    value = entry.get("default")
    return "left out" if value is None or value == [] else f"`{json.dumps(value)}`"


def _unit(name: str) -> str:
    last = name.rpartition(".")[2]
    if last in _UNITS:
        return _UNITS[last]
    if last.endswith("_seconds"):
        return "seconds"
    if last in ("listen", "coordinator", "enrolment_listen"):
        return "HOST:PORT"
    if last.endswith("_listen"):
        return "loopback HOST:PORT or unix:/path"
    is_path = last in ("state", "authority", "invitation", "table", "contract", "own_module", "trainer_socket", "plans")
    return "path" if is_path else ""
