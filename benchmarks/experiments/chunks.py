"""Computes a chunk of seeds of one variant in one process, on this machine or on another machine.

It has a module of its own, so that a worker on another machine can import it by name. The versions of libraries are
those of the process that computed the chunk.
"""

from __future__ import annotations

import platform
import time
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.experiments.tables.catalogue import table_named
from benchmarks.experiments.variants import Row
from protos.errors import OperatorError
from site_agent.trainer.arithmetic import prepare_arithmetic


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some seeds of one variant of a table, and the path of the public tables on the computing machine."""

    table: str
    variant: str
    folder: Path
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Computed:
    """The rows of results of a chunk, the processor seconds that they took, and the libraries that computed them."""

    chunk: Chunk
    rows: tuple[Row, ...]
    processor_seconds: float
    libraries: str


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The text of an error that a person can correct. The error itself cannot be pickled."""

    words: str


def run_chunk(chunk: Chunk) -> Computed | Refused:
    """Compute a chunk in this process, on one thread."""
    try:
        prepare_arithmetic(1)
    except OperatorError as refusal:
        return Refused(words=str(refusal))
    # Torch would warn, because the gradients of a stack's copies are stored side by side on purpose.
    warnings.filterwarnings("ignore", message="grad and param do not obey the gradient layout contract")
    began = time.process_time()
    definition = next(each for each in table_named(chunk.table).variants() if each.name == chunk.variant)
    try:
        rows = tuple(definition.run(chunk.folder, list(chunk.seeds)))
    except OperatorError as refusal:
        return Refused(words=str(refusal))
    seconds = time.process_time() - began
    return Computed(chunk=chunk, rows=rows, processor_seconds=seconds, libraries=_libraries())


def _libraries() -> str:
    names = ("torch", "numpy", "scikit-learn")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return f"Python {platform.python_version()}, {versions}, {platform.machine()}"
