"""Stores training state as named tensors, which are saved, restored and compared without a library's own format.

Counters are int64 of shape (). A generator's state is its JSON as bytes. The names of a part begin with its prefix, so
that the states of several parts can be joined and separated again.
"""

from __future__ import annotations

import json
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

State: TypeAlias = dict[str, Tensor]


def prefixed(prefix: str, state: State) -> State:
    """Return the same tensors under new names: the prefix, a slash and the old name."""
    return {f"{prefix}/{name}": tensor for name, tensor in state.items()}


def part_of(state: State, prefix: str) -> State:
    """Return the tensors whose names have this prefix, under their names without it. Undoes `prefixed`."""
    start = prefix + "/"
    return {name.removeprefix(start): tensor for name, tensor in state.items() if name.startswith(start)}


def generator_state(generator: np.random.Generator) -> Tensor:
    """Return a random generator's state: uint8 of shape (bytes,)."""
    return torch.tensor(list(json.dumps(generator.bit_generator.state, sort_keys=True).encode()), dtype=torch.uint8)


def restore_generator(generator: np.random.Generator, state: Tensor) -> None:
    """Set a random generator to a state that `generator_state` returned."""
    generator.bit_generator.state = json.loads(bytes(state.tolist()))
