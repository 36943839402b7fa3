"""Writes the list of a package's components (bill of materials, in CycloneDX format), and checksums."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from importlib.metadata import distributions
from pathlib import Path
from typing import Any


def write_bill(path: Path, name: str, version: str, *, wheels: Path, library: Path | None = None) -> None:
    """Write the list of components (bill of materials) as CycloneDX 1.5 in JSON.

    Args:
        wheels: the folder of all wheels, whose digests are listed.
        library: the installed packages; without it, every wheel of the folder is listed.
    """
    found = {_name(metadata): (metadata, digest) for metadata, digest in _wheels(wheels)}
    inside = set(found) if library is None else {_name(each.metadata) for each in distributions(path=[str(library)])}
    when = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": when.isoformat(timespec="seconds"),
            "component": {"type": "application", "name": name, "version": version, "bom-ref": name},
        },
        "components": [_component(*found[each]) for each in sorted(inside)],
    }
    path.write_text(json.dumps(bill, indent=2) + "\n")


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS for every file in the folder, in the format of `sha256sum --check`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{_digest(path)}  {path.relative_to(folder)}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


def _wheels(folder: Path) -> Iterator[tuple[Message, str]]:
    for path in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            (name,) = (
                name for name in wheel.namelist() if name.count("/") == 1 and name.endswith(".dist-info/METADATA")
            )
            yield HeaderParser().parsestr(wheel.read(name).decode()), _digest(path)


def _component(metadata: Message, digest: str) -> dict[str, Any]:  # Any: JSON
    name, version = _name(metadata), metadata["Version"]
    component: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": version,
        "bom-ref": f"{name}=={version}",
        "purl": f"pkg:pypi/{name}@{version}".replace("+", "%2B"),
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }
    if metadata["License-Expression"]:
        component["licenses"] = [{"expression": metadata["License-Expression"]}]
    elif licence := (metadata["License"] or "").strip().splitlines()[:1]:
        component["licenses"] = [{"license": {"name": licence[0]}}]
    return component


def _name(metadata: Any) -> str:  # Any: importlib's metadata and an e-mail's header are read alike
    return str(metadata["Name"]).lower().replace("_", "-").replace(".", "-")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
