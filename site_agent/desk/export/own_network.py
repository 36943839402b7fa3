"""Exports a hospital's own network: its Python file, whose SHA-256 the loader checks, and its ONNX form.

The file is copied unchanged. For ONNX, torch runs the module over rows of zeros and records the computation. Code
that decides by its values would be traced for those rows only. So export_folder.py compares the export with the
model.
"""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import nn

from protos.errors import ConfigurationError
from site_agent.trainer.checkpoints import Json
from site_agent.trainer.models.own_module import read_source

FILE: Final = "own_network.py"
_TRACED_ROWS: Final = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnNetwork:
    """A hospital's own module: its file's bytes, the network with its parameters, and the arguments of `build`."""

    source: bytes
    network: nn.Module
    columns: int
    outputs: int

    @property
    def facts(self) -> dict[str, Json]:
        """What model.json contains about the hospital's own network."""
        digest = hashlib.sha256(self.source).hexdigest()
        return {"file": FILE, "sha256": digest, "columns": self.columns, "outputs": self.outputs}


def own_network(path: str | None, network: nn.Module, columns: int, outputs: int) -> OwnNetwork:
    """Load the hospital's own module. Raises ConfigurationError if it cannot be read, or others can write it."""
    if path is None:
        raise ValueError("a network of named tensors is built from a file")
    return OwnNetwork(source=read_source(Path(path)), network=network, columns=columns, outputs=outputs)


def traced(own: OwnNetwork, opset: int) -> bytes:
    """Return the module as an ONNX model, from `rows`, float32 (rows, columns), to `outputs`.

    Raises:
        ConfigurationError: torch cannot record the computation, or the package onnx is not installed.
    """
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            # Torch warns that this exporter is old, and that it cannot trace some code. The export is compared.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                own.network,
                (torch.zeros(_TRACED_ROWS, own.columns),),
                Path(folder) / "traced.onnx",
                input_names=["rows"],
                output_names=["outputs"],
                dynamic_axes={"rows": {0: "rows"}, "outputs": {0: "rows"}},
                opset_version=opset,
                # The newer exporter needs an additional package, and writes operations that are not in the ONNX
                # standard.
                dynamo=False,
            )
            return (Path(folder) / "traced.onnx").read_bytes()
    except Exception as cause:  # torch raises many kinds of errors for code that it cannot trace
        raise ConfigurationError(
            what=f"The hospital's own network cannot be converted to ONNX: {type(cause).__name__}.",
            consequence="Nothing was exported, and nothing was sent.",
            remedy="Export without the option --onnx. The loader then runs the network's own Python file.",
        ) from cause
