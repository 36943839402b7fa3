"""Writes and reads the files of a site's saved models. A file is written completely or not at all.

Each checkpoint is one safetensors file with mode 0600. Its header has facts about the run as JSON, and a digest over
facts, names, shapes and values. So a damaged file is refused and never predicts for a patient. Nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as serialise_tensors

from protos.errors import ConfigurationError
from site_agent.trainer.trainer_files import array_digest, write_whole

LARGEST_CHECKPOINT_BYTES: Final = 1 << 33
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_KEY: Final = "global-layers"

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
Tensors: TypeAlias = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A saved model: arrays by name, facts about the run, and the digest of both in hexadecimal."""

    tensors: Tensors
    facts: Mapping[str, Json]
    digest: str


def save(directory: Path, name: str, tensors: Tensors, facts: Mapping[str, Json]) -> Path:
    """Write a checkpoint. An earlier file of the same name is replaced only when the new file is complete.

    `directory` is created with mode 0700 if absent. `name` has lower-case letters, digits, dots, underscores and
    hyphens. `facts` are values that JSON can store, with finite numbers.

    Raises:
        UnavailableError: the disk cannot be written; earlier checkpoints are unchanged.
    """
    text = json.dumps(facts, allow_nan=False, sort_keys=True, ensure_ascii=True)
    arrays = {key: np.asarray(value, order="C") for key, value in tensors.items()}
    if any(array.dtype.kind not in "fiub" for array in arrays.values()):
        raise ValueError("a checkpoint holds numbers only")
    header = json.dumps({"version": 1, "facts": text, "digest": _digest(arrays, text)})
    path = _path(directory, name)
    write_whole(path, serialise_tensors(arrays, metadata={_KEY: header}))
    return path


def load(directory: Path, name: str) -> Checkpoint:
    """Read a checkpoint. Raise ConfigurationError if there is none, or if it is damaged or of another version."""
    path = _path(directory, name)
    try:
        with path.open("rb") as file:
            # The size of the file is checked, because this much memory will be reserved. The largest size could be too
            # much.
            raw = file.read(min(os.fstat(file.fileno()).st_size, LARGEST_CHECKPOINT_BYTES) + 1)
    except OSError as cause:
        raise ConfigurationError(
            what=f"The checkpoint {path.name} cannot be read: {cause.strerror}.",
            consequence="No model was loaded and nothing was sent.",
            remedy="First train a model, or name a state folder with a checkpoint that your user account may read.",
        ) from cause
    try:
        return _parse(raw)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as cause:
        raise ConfigurationError(
            what=f"The checkpoint {path.name} is damaged or from another version of this program.",
            consequence="No model was loaded and nothing was sent.",
            remedy="Restore the file from a backup, use another checkpoint, or train again.",
        ) from cause


def _parse(raw: bytes) -> Checkpoint:
    if len(raw) > LARGEST_CHECKPOINT_BYTES:
        raise ValueError("larger than any checkpoint")
    tensors = parse_tensors(raw)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"][_KEY])
    if header["version"] != 1 or header["digest"] != _digest(tensors, header["facts"]):
        raise ValueError("another version, or not the bytes that were saved")
    return Checkpoint(tensors=tensors, facts=json.loads(header["facts"]), digest=header["digest"])


def _digest(tensors: Tensors, facts: str) -> str:
    return array_digest(f"global-layers checkpoint 1 {facts}", sorted(tensors.items()))


def _path(directory: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise ValueError("a checkpoint's name has lower-case letters, digits, dots, underscores and hyphens only")
    return directory / f"{name}.safetensors"
