"""Architectures of every kind, drawn at random, so that laws of networks are tested over many sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from protos.plan.architecture import (
    Architecture,
    ColumnsNetwork,
    ConvolutionalNetwork,
    DenseNetwork,
    GlobalLayersNetwork,
    ImageSize,
    ParallelNetwork,
    Part,
    TensorSpec,
    network_tensors,
)


def body_of(architecture: Architecture, columns: int = 2, outputs: int = 1) -> tuple[TensorSpec, ...]:
    """The tensors of a network's body."""
    network = network_tensors(architecture, columns=columns, outputs=outputs, common=1)
    return tuple(tensor for tensor in network if tensor.part is Part.BODY)


@dataclass(frozen=True)
class Drawn:
    """A network, and the sizes of one site; `common` is below `columns`."""

    architecture: Architecture
    columns: int
    outputs: int
    common: int

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes as keywords."""
        return {"columns": self.columns, "outputs": self.outputs, "common": self.common}


def _widths(generator: np.random.Generator, smallest: int) -> tuple[int, ...]:
    return tuple(int(width) for width in generator.integers(1, 12, generator.integers(smallest, 5)))


def _activation(generator: np.random.Generator) -> Any:
    return str(generator.choice(["relu", "selu", "gelu", "tanh"]))


def _global_layers(generator: np.random.Generator) -> Architecture:
    heads, entities = int(generator.choice([1, 2, 4])), bool(generator.integers(4))
    return GlobalLayersNetwork(
        name="global-layers-network",
        latent=8 * int(generator.integers(1, 4)),
        gate=bool(generator.integers(2)),
        input_normalisation=bool(generator.integers(2)),
        entity_width=2 * heads * int(generator.integers(1, 3)),
        heads=heads,
        transformer_blocks=int(generator.integers(0, 3)) if entities else 0,
        entities=entities,
    )


def _dense(generator: np.random.Generator) -> Architecture:
    return DenseNetwork(name="dense", hidden=_widths(generator, 0), activation=_activation(generator))


def _parallel(generator: np.random.Generator) -> Architecture:
    common, unique, activation = _widths(generator, 1), _widths(generator, 1), _activation(generator)
    head = _widths(generator, 0)
    return ParallelNetwork(name="parallel", common=common, unique=unique, activation=activation, head=head)


def _columns(generator: np.random.Generator) -> Architecture:
    lateral = float(generator.choice([0.0, 0.3, 1.0]))
    hidden, activation = _widths(generator, 1), _activation(generator)
    return ColumnsNetwork(name="columns", hidden=hidden, activation=activation, lateral=lateral)


def _image(generator: np.random.Generator) -> ImageSize:
    height, width = (int(side) for side in generator.integers(1, 9, 2))
    return ImageSize(height=height, width=width, channels=3 if generator.integers(2) else 1)


def _convolutional(generator: np.random.Generator) -> Architecture:
    return ConvolutionalNetwork(
        name="convolutional",
        image=_image(generator),
        blocks=_widths(generator, 1),
        hidden=_widths(generator, 0),
        normalisation=bool(generator.integers(2)),
        activation=_activation(generator),
    )


KINDS: Final[dict[str, Callable[[np.random.Generator], Architecture]]] = {
    "global-layers-network": _global_layers,
    "dense": _dense,
    "parallel": _parallel,
    "columns": _columns,
    "convolutional": _convolutional,
}


def drawn(kind: str, seed: int) -> Drawn:
    """A network of this kind without dropout, with few columns and outputs; equal seeds draw equal ones."""
    generator = np.random.default_rng(seed)
    architecture = KINDS[kind](generator)
    columns = int(generator.integers(2, 9))
    if isinstance(architecture, ConvolutionalNetwork):
        columns = architecture.image.numbers
        return Drawn(architecture, columns, int(generator.integers(1, 5)), columns)
    common = int(generator.integers(1, columns))
    return Drawn(architecture, columns, int(generator.integers(1, 5)), common)
