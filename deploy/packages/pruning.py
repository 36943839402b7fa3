"""Removes parts of libraries that no program of this project reads, about a fifth of the packages' size.

A rule must be safe without running anything, so there are only four kinds: libraries' own tests, which only tests
import; headers and build files, which only a compiler reads; programs of a library that nothing here starts; archives
of objects, which only a linker reads. Two of the remaining modules import tests: mpmath's own command to run them, and
a script that makes a table of scipy. Licences are never removed.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_FOLDERS: Final = ("torch/test", "torch/include", "torch/share", "joblib/test", "pyarrow/include", "pyarrow/src")
_FILES: Final = ("torch/bin/*", "*.a")
# torch starts this program itself if tensors pass between processes.
_KEPT: Final = ("torch/bin/torch_shm_manager",)
_LICENCE: Final = re.compile(r"licen[cs]e|copying|notice|authors", re.IGNORECASE)


def prune(library: Path) -> int:
    """Remove unused parts of libraries, also from the lists of installed files. Return the number of removed bytes.

    Args:
        library: the folder of installed packages, before it is compiled.
    """
    gone = sorted({path for path in _found(library) if not _LICENCE.search(path.name)})
    size = sum(path.stat().st_size for path in gone)
    for path in gone:
        path.unlink()
    folders = {folder for path in gone for folder in path.parents if library in folder.parents}
    for folder in sorted(folders, reverse=True):  # deeper folders first
        if not any(folder.iterdir()):
            folder.rmdir()
    names = {str(path.relative_to(library)) for path in gone}
    for record in library.glob("*.dist-info/RECORD"):
        listed = csv.reader(io.StringIO(record.read_text()))
        # Libraries' programs are absent, and their digests depend on the path of the interpreter that installed them.
        rows = [row for row in listed if row[0] not in names and not row[0].startswith("../../bin/")]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        record.write_text(text.getvalue())
    return size


def _found(library: Path) -> Iterator[Path]:
    folders = [library / name for name in _FOLDERS]
    # Only below a package, because a distribution called `tests` could be a real module.
    folders += library.glob("*/**/tests")
    for folder in folders:
        yield from (path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
    for path in (path for pattern in _FILES for path in library.rglob(pattern)):
        if path.is_file() and str(path.relative_to(library)) not in _KEPT:
            yield path
