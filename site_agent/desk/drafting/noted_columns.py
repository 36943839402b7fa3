"""Drafts a column with what its file says about it: labels, missing codes, units and limits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from site_agent.desk.drafting.column_draft import ColumnDraft, Line
from site_agent.trainer.data.cell_rules import canonical_code
from site_agent.trainer.data.file_notes import FileNote

_LONGEST_NOTE = 200


class NotedDraft(ColumnDraft):
    """The draft of a column from its cells without those that the file calls missing: these are the `declared` ones."""

    declared: tuple[str, ...] = ()


def noted_draft(name: str, decimal: str, cells: Sequence[str], notes: Mapping[str, FileNote]) -> ColumnDraft:
    """Return the draft of a column. The notes of its file are by name."""
    note = notes.get(name)
    if note is None:
        return ColumnDraft(name, decimal, cells)
    missing = {cell for cell in set(cells) if note.means_missing(cell.strip())}
    draft = NotedDraft(name, decimal, ["" if cell in missing else cell for cell in cells])
    draft.declared = tuple(sorted({canonical_code(cell) for cell in missing}))
    return draft


def noted_line(column: ColumnDraft, line: Line, note: FileNote | None) -> Line:
    """Return the drafted line of a column with what the file says about it."""
    if note is None:
        return line
    keys, words = dict(line.keys), [*note.told, *line.words]
    if note.ignored and keys["role"] != "patient":
        return Line(keys=(("name", keys["name"]), ("role", "ignore")), words=(note.ignored,))
    labels = {canonical_code(code): label for code, label in note.labels.items() if not note.means_missing(code)}
    if keys["role"] in ("feature", "target", "ignore") and len(labels) > 1 and column.codes.keys() <= labels.keys():
        keys = _labelled(keys, labels)
        words = [word for word in words if "whole numbers" not in word and "all values are equal" not in word]
    elif note.labels:
        shown = ", ".join(f"{code} is {label}" for code, label in list(note.labels.items())[:5])
        words.append(f"labels in the file: {shown}")
    if keys.get("type") == "numeric":
        if note.written_unit:
            keys["unit"] = json.dumps(note.written_unit, ensure_ascii=False)
            words = [word.replace("; unit: add it", "") for word in words]
        if note.limits is not None:
            keys["range"] = f"[{note.limits[0]:g}, {note.limits[1]:g}]"
    if isinstance(column, NotedDraft) and column.declared and keys["role"] in ("feature", "group", "follow-up"):
        keys["missing_markers"] = json.dumps(list(column.declared))
        words.append("missing_markers: what the file calls missing; a reason such as 'not asked' can also be a code")
    elif isinstance(column, NotedDraft) and column.declared and keys["role"] == "target":
        words.append(f"the file calls {', '.join(column.declared)} missing here: list it under missing_markers above")
    if note.label and note.label != column.name:
        keys["note"] = json.dumps(note.label[:_LONGEST_NOTE], ensure_ascii=False)
    return Line(keys=tuple(keys.items()), words=tuple(words))


def _labelled(keys: dict[str, str], labels: Mapping[str, str]) -> dict[str, str]:
    codes = json.dumps(list(labels), ensure_ascii=False)
    told = json.dumps(list(labels.values()), ensure_ascii=False)
    if keys["role"] == "target":
        if keys["task"] != "binary":
            return {**keys, "task": "multi-class", "codes": codes, "labels": told}
        for name in ("positive", "negative"):
            of = json.loads(keys.get(name, "[]"))
            if len(of) == 1:
                keys[f"{name}_name"] = json.dumps(labels[canonical_code(str(of[0]))], ensure_ascii=False)
        return keys
    kind = "binary" if len(labels) == 2 else "categorical"
    found = {"name": keys["name"], "role": "feature", "type": kind, "codes": codes, "labels": told}
    return {**found, "missing": "refuse"} if keys.get("missing") == "refuse" else found
