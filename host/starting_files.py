"""Reads the starting file of a plan: a safetensors file with initial values of a network.

The coordinator, each gate and each trainer read their own copy, so none must trust another program. The rules:

* the file's name is its SHA-256, and the digest of the content is compared with the plan's before parsing;
* the plan's tensors limit the size, and the size is checked before memory is reserved;
* names, shapes and float32 are exactly those of the plan, and every number is finite.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NoReturn

import numpy as np

from protos.errors import ConfigurationError
from protos.plan.architecture import TensorSpec
from protos.plan.manifest import Starts, starting_tensors
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan

_LARGEST_HEADER_BYTES: Final = 1 << 20
_COPY: Final = "Copy the file with the plan's digest to this place."
_OTHER: Final = "Ask the researcher for a plan and a file that match."


def starting_values(folder: Path, plan: Plan) -> Starts:
    """Return a plan's starting values by tensor name, from its file in `folder`. Empty if the plan names no file.

    Raises:
        ConfigurationError: the file is missing, too large, a different one, or does not fit the plan.
    """
    if not isinstance(plan, NetworkPlan) or plan.starting_file is None:
        return {}
    tensors = starting_tensors(plan)
    path = folder / f"{plan.starting_file.sha256}.safetensors"
    content = _read(path, 4 * sum(tensor.number_count for tensor in tensors) + _LARGEST_HEADER_BYTES)
    found = hashlib.sha256(content).hexdigest()
    if not hmac.compare_digest(found, plan.starting_file.sha256):
        _refuse(f"{path} has the SHA-256 {found}. The plan names the starting file {plan.starting_file.sha256}.", _COPY)
    return _parsed(path, content, tensors)


def _read(path: Path, most: int) -> bytes:
    try:
        # Opening must not wait, as it would for the other end of a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                _refuse(f"{path}, the file with the network's starting values, is not a regular file.", _COPY)
            if state.st_size > most:
                what = (
                    f"{path}, the file with the network's starting values, has {state.st_size:,} bytes, "
                    f"and the plan's tensors allow {most:,}."
                )
                _refuse(what, _OTHER)
            return file.read(most)
    except OSError as cause:
        raise ConfigurationError(
            what=f"{path}, the file with the network's starting values, cannot be read: {cause.strerror}.",
            consequence="The run did not start, and nothing was sent.",
            remedy=_COPY,
        ) from cause


def _parsed(path: Path, content: bytes, tensors: Iterable[TensorSpec]) -> Starts:
    import safetensors  # few plans have such a file
    import safetensors.numpy

    try:
        arrays = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, KeyError) as cause:  # KeyError: a type that numpy lacks, such as BF16
        raise ConfigurationError(
            what=f"{path} is not a safetensors file with float32 tensors.",
            consequence="The run did not start, and nothing was sent.",
            remedy=_OTHER,
        ) from cause
    found = {(name, array.dtype.str, array.shape) for name, array in arrays.items()}
    wanted = {(tensor.name, "<f4", tensor.shape) for tensor in tensors}
    if found != wanted:
        # The name is from a file that somebody sent, so no control character of it reaches a terminal.
        name, kind, shape = min(found ^ wanted)
        one = f"{name[:80]!a} ({kind}, {shape})"
        _refuse(f"{path} has other tensors than the plan, for example {one} is only in one of them.", _OTHER)
    if unusable := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        _refuse(f"{path} has values in {unusable[0]} that are not finite.", _OTHER)
    return arrays


def _refuse(what: str, remedy: str) -> NoReturn:
    raise ConfigurationError(what=what, consequence="The run did not start, and nothing was sent.", remedy=remedy)
