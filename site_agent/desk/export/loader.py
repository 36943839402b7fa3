"""Loads an exported model and predicts. The loader needs PyTorch and no other package.

    from loader import load
    model = load("folder-of-the-export")
    model.predict([{"age": 63, "sex": "1"}, {"age": 41, "sex": ""}])

Nothing outside of the folder is read. Code in the folder runs only with load(folder, allow_code=True).

A row has the table's values, by the columns' names. A date is text in the format that model.json shows (`pattern`), a
datetime.date, or a number: days since 1970-01-01.

An image is a list of its intensities as the file has them: channel by channel, and in each channel row by row. Nested
lists are allowed. Its size, already turned and stretched, is in model.json under `image`.

`predict` returns a list with an entry for each row: the probability of the positive class, a list with one for each
class, a number in the target's unit, or for a mask a list with the probability of each pixel, row by row. The entry
is None in three cases: a column or a value that the model needs is missing, the contract does not allow a value, or a
number is beyond the limits of the training rows. `model.why(rows)` returns the reasons.

Research software: not a medical device.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

# The export replaces this import by the text of the imported file, so that a loader needs only PyTorch.
from site_agent.desk.export.row_reader import RowReader

_TYPES = {
    "F32": torch.float32, "F64": torch.float64, "F16": torch.float16, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_MODULE = "module."
_PLAIN: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "matmul": torch.matmul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "exp": torch.exp,
    "log": torch.log,
    "erf": torch.erf,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "selu": torch.selu,
    "sqrt": torch.sqrt,
    "equal": torch.eq,
    "greater": torch.gt,
    "not": torch.logical_not,
    "where": torch.where,
}
# Operations with attributes, or with a meaning of their own.
_OTHERS: dict[str, Callable[..., Tensor]] = {
    "softmax": lambda value: torch.softmax(value, -1),
    "sum": lambda value: torch.sum(value, -1, keepdim=True),
    "mean": lambda value: torch.mean(value, -1, keepdim=True),
    "cast": lambda value, to: value.to(getattr(torch, to)),
    "concatenate": lambda *values, axis: torch.cat(values, dim=axis),
    "reshape": lambda value, shape: value.reshape(shape),
    "transpose": lambda value, order: value.permute(order),
    "slice": lambda value, axis, start, stop: value.narrow(axis, start, stop - start),
    "gather": lambda value, places: value[:, places],
    "lookup": lambda table, places: table[places.long()],
    "forest": lambda *values: _forest(*values),
    "convolution": lambda images, weight, bias, stride, groups: torch.nn.functional.conv2d(
        images, weight, bias, stride, weight.shape[-1] // 2, groups=groups
    ),
    "largest": lambda images: torch.nn.functional.max_pool2d(images, 2),
}


def load(folder: str | Path, *, allow_code: bool = False) -> Exported:
    """Load the model from a folder with model.json and model.safetensors.

    Args:
        allow_code: whether to run a hospital's own network, which is Python code from a file in the folder.
            model.json has its SHA-256. It proves that the file belongs to this export, but not that it does no harm.
            Allow it only if you trust the person who gave you the folder.

    Raises:
        ValueError: the model has code and `allow_code` is False, or a file is missing from the folder, is a link, or
            is not the one that was exported.
    """
    facts = json.loads(_content(folder, "model.json"))
    tensors = _tensors(_content(folder, "model.safetensors"))
    said = facts.get("module")
    if said is None:
        return Exported(facts, tensors, None)
    if not allow_code:
        raise ValueError(
            f"the model needs the Python code in {said['file']}, and nothing was run; if you trust whoever made this "
            "folder, read that file and call load(folder, allow_code=True)"
        )
    return Exported(facts, tensors, module_of(said, _content(folder, said["file"]), tensors))


def _content(folder: str | Path, name: str) -> bytes:
    """Return the bytes of a file in the folder of the export. Links and paths outside the folder are refused."""
    if name != Path(name).name or name in ("", ".", "..") or "\\" in name or ":" in name:
        raise ValueError(f"{name!r} is not the name of a file in the folder of the export")
    path = Path(folder) / name
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{name} is a link or no regular file; an export has its files in its own folder")
    return path.read_bytes()


def module_of(said: dict[str, Any], source: bytes, tensors: dict[str, Tensor]) -> torch.nn.Module:
    """Return a hospital's own network, built by the code of its file, with the exported parameters."""
    if hashlib.sha256(source).hexdigest() != said["sha256"]:
        raise ValueError(f"{said['file']} is not the file that this model was exported with: its SHA-256 is another")
    space = ModuleType("own_module")
    sys.modules[space.__name__] = space  # dataclasses look their module up by name
    exec(compile(source, said["file"], "exec"), space.__dict__)  # noqa: S102  # its SHA-256 was checked above
    network: torch.nn.Module = space.build(said["columns"], said["outputs"])
    kept = dict(network.named_parameters()) | dict(network.named_buffers())
    with torch.no_grad():
        for name, inner in kept.items():
            inner.copy_(tensors[f"{_MODULE}{name}"])
    return network.eval()


class Exported:
    """An exported model that predicts with PyTorch."""

    def __init__(
        self, facts: dict[str, Any], tensors: dict[str, Tensor], module: torch.nn.Module | None = None
    ) -> None:
        self.facts, self._tensors, self._module = facts, tensors, module
        self._rows = RowReader(facts)

    def predict(self, rows: list[dict[str, Any]]) -> list[Any]:
        """Return a prediction for each row, in order. The module's docstring describes rows and predictions."""
        return self._rows.answers(rows, lambda read: self.scores(torch.tensor(read, dtype=torch.float64)).tolist())

    def why(self, rows: list[dict[str, Any]]) -> list[str]:
        """Return for each row why it has no prediction: columns, problem and values. Otherwise the text is empty."""
        return self._rows.why(rows)

    def scores(self, values: Tensor) -> Tensor:
        """Compute scores from float64 (rows, inputs): float64 (rows, 1) or (rows, classes).

        The inputs are the features, the days and then the terms of model.json, in that order. A number is NaN if
        missing. A code is its position, -1 if unknown. A date is the days since 1970-01-01, NaN if missing. A list or
        a note is how often each term occurs, one input for each term.
        """
        known = dict(self._tensors, values=values)
        with torch.no_grad():
            for step in self.facts["operations"]:
                inputs = [known[name] for name in step["inputs"]]
                if step["name"] == "module" and self._module is not None:
                    known[step["output"]] = self._module(*inputs)
                else:
                    known[step["output"]] = computed(step["name"], inputs, step["attributes"])
        return known[self.facts["result"]]


def computed(name: str, inputs: list[Tensor], attributes: dict[str, Any]) -> Tensor:
    """Return the result of one operation of an exported model."""
    if name in _PLAIN:
        return _PLAIN[name](*inputs)
    if name not in _OTHERS:
        raise ValueError(f"an operation that this loader does not know: {name}")
    return _OTHERS[name](*inputs, **attributes)


def _forest(
    rows: Tensor, roots: Tensor, columns: Tensor, thresholds: Tensor, children: Tensor, values: Tensor
) -> Tensor:
    """Return for each row the mean value of the leaves that it reaches in the trees. A leaf is its own child."""
    at = roots.expand(len(rows), -1)
    while True:
        above = (rows.gather(1, columns[at]) > thresholds[at]).long()
        then = children[at, above]
        if torch.equal(then, at):
            return values[at].mean(dim=1)
        at = then


def _tensors(raw: bytes) -> dict[str, Tensor]:
    """Read the arrays of a safetensors file. The file has the header's length (8 bytes), a JSON header, and numbers."""
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    found = {}
    for name, one in header.items():
        if name != "__metadata__":
            low, high = one["data_offsets"]
            part = bytearray(raw[start + low : start + high])
            array = torch.frombuffer(part, dtype=_TYPES[one["dtype"]]) if part else torch.empty(0)
            found[name] = array.reshape(one["shape"])
    return found
