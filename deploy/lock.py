"""Writes the lock files: with the program uv on the path, `python deploy/lock.py` in a checkout.

deploy/site.lock has the SHA-256 of every wheel and source archive of each library that a hospital or the office
installs, for all processors and for Python 3.11 and newer. deploy/development.lock has those that only tests and builds
need, and deploy/build.lock what builds the few that have no wheel. The versions are those of constraints.txt. PyTorch
and the libraries for graphics cards stand in none: institutions use different builds of one version, and not all have
a published hash.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).parents[1]
SITE: Final = ("site", "imaging", "formats", "databases")
OTHERS: Final = ("onnx", "benchmarks", "development")
UNLOCKED: Final = ("torch==", "triton==", "nvidia-", "cuda-")
_HEAD: Final = "# Written by deploy/lock.py, which explains it. Installed with pip's --require-hashes.\n"


def locked(extras: Iterable[str]) -> dict[str, str]:
    """Return the lines of each library that these extras need, by its name and version."""
    words = ["uv", "pip", "compile", "pyproject.toml", "--universal", "--python-version", "3.11", "--generate-hashes"]
    words += ["--constraint", "constraints.txt", "--no-header", "--no-annotate", "--quiet"]
    words += [f"--extra={extra}" for extra in extras]
    found = subprocess.run(words, cwd=TREE, check=True, capture_output=True, text=True).stdout
    entries: list[list[str]] = []
    for line in found.splitlines():
        if line.startswith(" "):
            entries[-1].append(line)
        else:
            entries.append([line])
    kept = (entry for entry in entries if not entry[0].startswith(UNLOCKED))
    return {entry[0].split(" ", 1)[0]: "\n".join(entry) + "\n" for entry in kept}


def main() -> None:
    """Write the lock files."""
    site, everything = locked(SITE), locked((*SITE, *OTHERS))
    more = {name: lines for name, lines in everything.items() if name not in site}
    build = {name: lines for name, lines in site.items() if name.startswith("setuptools==")}
    for name, entries in (("build", build), ("site", site), ("development", more)):
        (TREE / f"deploy/{name}.lock").write_text(_HEAD + "".join(entries.values()))


if __name__ == "__main__":
    main()
