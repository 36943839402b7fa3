"""A starting file as a researcher would write it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.numpy


def random_values(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, npt.NDArray[np.float32]]:
    """Pretrained values that differ in every tensor."""
    generator = np.random.default_rng(9)
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_starting_file(folder: Path, values: Mapping[str, npt.NDArray[np.generic]] | bytes) -> str:
    """Write the values, or these bytes, under the name of their digest; return the digest."""
    content = values if isinstance(values, bytes) else safetensors.numpy.save(dict(values))
    digest = hashlib.sha256(content).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{digest}.safetensors").write_bytes(content)
    return digest
