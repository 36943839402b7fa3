"""Reads another hospital's exported model from a folder, and computes the model's scores. The folder is not trusted.

Only model.json and model.safetensors are read, never loader.py, ONNX or another file of the folder. The rules:

* each file is a regular file in the folder itself, not a link, and its size is checked before memory is reserved;
* model.json has exactly the keys of an export of a table or of images; masks and Python code are refused;
* only a fixed list of operations is allowed, with one forest at most, and its paths are short;
* the shapes of all results are computed before the values, so a small file cannot use much memory or time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from torch import Tensor

from protos.errors import ConfigurationError
from site_agent.desk.export.graph import INPUT, NAMES
from site_agent.desk.export.loader import computed
from site_agent.desk.export.received_description import Description, Step
from site_agent.trainer.data.pixel_store import Pixels
from site_agent.trainer.forest import Forest

LARGEST_DESCRIPTION_BYTES: Final = 1 << 23
LARGEST_TENSORS_BYTES: Final = 1 << 29
_MOST_NUMBERS: Final = 1 << 26  # of all results for one block of rows
# Multiplications in matrix products for all rows: about a quarter of an hour with two cores.
_MOST_WORK: Final = 1 << 44
_WORK_OF_A_NUMBER: Final = 16  # the number of multiplications that take as long as reading or writing one number
_DEEPEST: Final = 10_000  # nodes on a path of a tree; random forests of large tables have fewer than 100
_OF_TABLES: Final = NAMES - {"module", "convolution", "largest"}
_TREES: Final = ("roots", "columns", "thresholds", "children", "values")
_TYPES: Final = {torch.float32, torch.float64, torch.int64, torch.int32}
# The exceptions that torch and Python raise if operations, shapes, types or numbers do not match.
_UNFIT: Final = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError)


@dataclass(frozen=True, eq=False)
class Intensities:
    """The images of rows in the unit of their files, computed for one block of rows at a time.

    Attributes:
        images: float32 of shape (rows of the table, numbers of an image), each from 0 to 1.
        rows: int64 of shape (rows,), their places in the table.
        window: the intensities that became 0 and 1.
    """

    images: Pixels
    rows: npt.NDArray[np.int64]
    window: tuple[float, float]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, part: slice) -> npt.NDArray[np.float64]:
        """Return some images in the unit of their files: float64 of shape (rows of the part, numbers of an image)."""
        low, high = self.window
        return low + (high - low) * self.images[self.rows[part]].astype(np.float64)


@dataclass(frozen=True, eq=False)
class ReceivedExport:
    """Another hospital's exported model: its description, and its constants by name."""

    description: Description
    constants: Mapping[str, Tensor]

    def check_rows(self, rows: int) -> None:
        """Raise ConfigurationError, before a row is read, if this number of rows needs too much memory."""
        if rows * self.description.inputs > _MOST_NUMBERS:
            raise refused("Its columns need too much memory for this number of test rows.")

    def scores(self, values: npt.NDArray[np.float64] | Intensities) -> npt.NDArray[np.float64]:
        """Compute the model's scores, float64 (rows,) or (rows, classes), from float64 (rows, inputs).

        Raises:
            ConfigurationError: the operations do not match the columns, need too much memory or time, or return no
                probabilities.
        """
        try:
            depth = self._forest_depth()
            rows = max(1, min(len(values), _MOST_NUMBERS // max(1, self._costs(values[:1], depth)[0])))
            numbers, work = self._costs(values[:rows], depth)
            if numbers > 2 * _MOST_NUMBERS or work * ceil(len(values) / rows) > _MOST_WORK:
                raise ValueError("results that are too large, or that take too long")
            parts = [self._block(values[start : start + rows]) for start in range(0, len(values), rows)]
            return self._checked(np.concatenate(parts, dtype=np.float64), len(values))
        except _UNFIT as cause:
            raise refused("Its operations do not fit its columns, or they need too much memory or time.") from cause

    def _forest_depth(self) -> int:
        """Check the model's forest, and return the number of nodes on its longest path; 0 if there is no forest."""
        forests = [step for step in self.description.operations if step.name == "forest"]
        if len(forests) > 1:
            raise ValueError("several forests")
        arrays = [self.constants[name].numpy() for step in forests for name in step.inputs[1:]]
        return _depth(Forest(**dict(zip(_TREES, arrays, strict=True)))) if forests else 0

    def _costs(self, values: npt.NDArray[np.float64], depth: int) -> tuple[int, int]:
        """Estimate how many numbers a computation has in memory, and its work, without reserving the memory."""
        known = {name: one.to("meta") for name, one in self._begun(values).items()}
        numbers = work = 0
        for step, inputs, result in self._results(known):
            numbers += result.numel()
            work += _WORK_OF_A_NUMBER * (result.numel() + sum(one.numel() for one in inputs))
            if step.name == "forest":
                # To compute a forest, PyTorch reserves memory for each row, tree and output.
                pairs = len(inputs[0]) * len(inputs[1])
                numbers, work = numbers + pairs * (8 + inputs[5].shape[1]), work + _WORK_OF_A_NUMBER * pairs * depth
            elif step.name == "matmul":
                numbers, work = numbers + _copied(*inputs), work + result.numel() * inputs[0].shape[-1]
            elif step.name == "convolution":
                numbers += _patches(inputs[0], inputs[1], result)
                work += result.numel() * inputs[1][0].numel()
        return numbers, work

    def _begun(self, values: npt.NDArray[np.float64]) -> dict[str, Tensor]:
        return dict(self.constants) | {INPUT: torch.from_numpy(values)}

    def _block(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.generic]:
        known = self._begun(values)
        for _ in self._results(known):
            pass
        return np.asarray(known[self.description.result].numpy())

    def _results(self, known: dict[str, Tensor]) -> Iterator[tuple[Step, list[Tensor], Tensor]]:
        """Compute the operations in order, and yield each with its inputs and its result."""
        allowed = _OF_TABLES if self.description.image is None else NAMES - {"module"}
        for step in self.description.operations:
            inputs = [known[name] for name in step.inputs]
            if step.name not in allowed or step.attributes.get("to", "float32") not in ("float32", "float64"):
                raise ValueError("an operation that no export of this kind has")
            if step.output in known:  # otherwise a forest that was not checked could be computed
                raise ValueError("two values with one name")
            if step.name == "forest" and inputs[0].is_meta:
                values = inputs[5]  # shapes alone are not enough to compute a forest
                result = torch.empty((len(inputs[0]), values.shape[1]), dtype=values.dtype, device="meta")
            else:
                plain = {key: list(one) if isinstance(one, tuple) else one for key, one in step.attributes.items()}
                result = computed(step.name, inputs, plain)
            known[step.output] = result
            yield step, inputs, result

    def _checked(self, scores: npt.NDArray[np.float64], rows: int) -> npt.NDArray[np.float64]:
        outputs = len(self.description.classes) if self.description.task == "multi-class" else 1
        if scores.shape != (rows, outputs) or not np.isfinite(scores).all():
            raise ValueError("no finite number for each row and output")
        if self.description.task != "regression" and (scores.min() < 0 or scores.max() > 1):
            raise ValueError("no probabilities")
        return scores if outputs > 1 else scores[:, 0]


def _depth(forest: Forest) -> int:
    """Return the nodes on the longest path. Raises ValueError if it is too long, or a node is on several paths."""
    at, left, depth = forest.roots, len(forest.columns), 0
    while len(at) and left >= 0 and depth < _DEEPEST:
        at = at[~np.isinf(forest.thresholds[at])]
        left, depth = left - len(at), depth + 1
        at = forest.children[at].ravel()
    if len(at):
        raise ValueError("no trees, or trees that are too deep")
    return depth


def _copied(first: Tensor, second: Tensor) -> int:
    """Return how many numbers PyTorch copies when it multiplies two stacks with different numbers of matrices."""
    if first.ndim < 3 or second.ndim < 3:
        return 0
    stack = prod(np.broadcast_shapes(first.shape[:-2], second.shape[:-2]))
    whole = [stack * one.shape[-2] * one.shape[-1] for one in (first, second)]
    return sum(whole) - first.numel() - second.numel()


def _patches(images: Tensor, filters: Tensor, result: Tensor) -> int:
    """Return how many numbers a convolution copies if it is a matrix product: the inputs of every number of the result.

    Raises:
        ValueError: the inputs are not stacks of images and filters.
    """
    if images.ndim != 4 or filters.ndim != 4:
        raise ValueError("no images")
    if filters.shape[2:] == (1, 1) and result.shape[2:] == images.shape[2:]:
        return 0  # the images themselves are the product's input
    return result[:, :1].numel() * images.shape[1] * filters.shape[2] * filters.shape[3]


def read_received(folder: Path) -> ReceivedExport:
    """Read another hospital's exported model from its folder. Raises ConfigurationError if it is invalid."""
    try:
        description = Description.model_validate_json(_content(folder, "model.json", LARGEST_DESCRIPTION_BYTES))
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"]) or "features"
        raise refused(f"In its model.json the key {place[:60]!r} is missing, unknown or not usable here.") from error
    try:
        constants = parse_tensors(_content(folder, "model.safetensors", LARGEST_TENSORS_BYTES))
    except (SafetensorError, *_UNFIT) as cause:
        raise refused("Its model.safetensors is damaged.") from cause
    if any(one.dtype not in _TYPES for one in constants.values()):
        raise refused("Its model.safetensors has numbers of a type that no export has.")
    return ReceivedExport(description, constants)


def refused(what: str) -> ConfigurationError:
    """Return the error message for an exported model that cannot be used. `what` describes the problem."""
    return ConfigurationError(
        what=f"The other hospital's exported model cannot be used. {what}",
        consequence="The program did not run any code from the folder. No report was made, and nothing was sent.",
        remedy=(
            "Ask the other hospital to run `site-agent export` again and to send the new folder, or leave out --with."
        ),
    )


def _content(folder: Path, name: str, most: int) -> bytes:
    """Return the bytes of a regular file in the folder. Opening follows no link and never blocks."""
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise refused(f"Its {name} is not a regular file.")
            if state.st_size > most:
                raise refused(f"Its {name} has {state.st_size:,} bytes. At most {most:,} are read.")
            return file.read(most)
    except OSError as cause:
        raise refused(f"Its {name} cannot be read: {cause.strerror}.") from cause
