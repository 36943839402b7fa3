"""Writes docs/configuration.md from the records that check a configuration and the comments of the example files.

python deploy/configuration_page.py > docs/configuration.md
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

HOUSE: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HOUSE))

from coordinator.commands.configuration import CoordinatorConfiguration  # noqa: E402
from site_agent.hospital import Hospital  # noqa: E402

_END: Final = """No variable of the environment replaces a key, and none names a proxy.

The examples in [deploy/examples](../deploy/examples) explain each key of a plan and of a data contract."""


def page() -> str:
    """Return the text of docs/configuration.md."""
    made = "<!-- Made by `python deploy/configuration_page.py`; change the records or the examples instead. -->"
    parts = [made, "# Every key of the configurations"]
    for name, record in (("coordinator.yaml", CoordinatorConfiguration), ("hospital.yaml", Hospital)):
        schema, example = record.model_json_schema(), HOUSE / "deploy/examples" / name
        reasons = _reasons(example.read_text())
        rows = [
            f"| `{key}` | {kind} | {default} | {reasons.get(key, '')} |" for key, kind, default in _keys(schema, schema)
        ]
        parts += [f"## [{name}](../deploy/examples/{name})"]
        parts += [
            "\n".join(("| key | type | default | meaning, and reason to change it |", "|---|---|---|---|", *rows))
        ]
    return "\n\n".join((*parts, _END)) + "\n"


def _keys(record: Mapping[str, Any], schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the dotted name, the type and the default of each key, also of keys inside groups."""
    for name, entry in record["properties"].items():
        choices = [schema["$defs"][one["$ref"][8:]] if "$ref" in one else one for one in entry.get("anyOf", (entry,))]
        inner = next((one for one in choices if "properties" in one), None)
        if inner is not None:
            yield from _keys(inner, schema, f"{prefix}{name}.")
        else:
            value = entry.get("default")
            default = "left out" if value is None or value == [] else f"`{json.dumps(value)}`"
            kind = " or ".join(filter(None, map(_kind, choices)))
            yield f"{prefix}{name}", kind, "required" if name in record.get("required", ()) else default


def _kind(entry: Mapping[str, Any]) -> str:
    if words := entry.get("enum") or ([entry["const"]] if "const" in entry else []):
        return " or ".join(f"`{word}`" for word in words)
    names = {"array": "list", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
    bounds = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    said = [f"{word} {entry[name]:.12g}" for name, word in bounds.items() if name in entry]
    kind = names.get(entry.get("type", ""), "text" if entry.get("type") == "string" else "")
    return ", ".join((kind, " ".join(said))) if said else kind


def _reasons(text: str) -> dict[str, str]:
    """Return for each key, such as `policy.methods`, the comment above this key in an example file."""
    found: dict[str, str] = {}
    comment: list[str] = []
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("# ").strip())
            continue
        if match := re.match(r"^( *)([a-z_]+):", line):
            path = [*(step for step in path if step[0] < len(match[1])), (len(match[1]), match[2])]
            said = " ".join(word for word in comment if word and not word.startswith("or {"))
            found[".".join(name for _, name in path)] = said.replace("|", "\\|")
        comment = []
    return found


if __name__ == "__main__":
    sys.stdout.write(page())
