"""Loads an exported model and predicts with it; needs PyTorch and nothing else.

    from loader import load

    model = load("folder-of-the-export")
    model.predict([{"age": 63, "sex": "1"}, {"age": 41, "sex": ""}])

A row has what the table has, by the columns' names; a date is given as the interval that model.json names, in its unit.
The answer is a list with an entry for each row: the probability of the positive class, a list with one for each class,
or a number in the target's unit; None where a column or a value is missing that the model needs, or a value leaves
what the training rows had. Research software: not a medical device.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_TYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}
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


def load(folder: str | Path) -> Exported:
    """The model in a folder with model.json and model.safetensors."""
    facts = json.loads((Path(folder) / "model.json").read_text(encoding="utf-8"))
    return Exported(facts, _tensors((Path(folder) / "model.safetensors").read_bytes()))


class Exported:
    """An exported model."""

    def __init__(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.facts, self._tensors = facts, tensors

    def predict(self, rows: list[dict[str, Any]]) -> list[Any]:
        """An answer for each row, in order; see above."""
        found = [[_cell(column, row) for column in self.facts["features"]] for row in rows]
        usable = [place for place, values in enumerate(found) if None not in values]
        answers: list[Any] = [None] * len(rows)
        if usable:
            said = self.scores(torch.tensor([found[place] for place in usable], dtype=torch.float64)).tolist()
            for place, answer in zip(usable, said, strict=True):
                answers[place] = answer[0] if len(answer) == 1 else answer
        return answers

    def scores(self, values: Tensor) -> Tensor:
        """Float64 (rows, features), NaN and -1 for what is missing, to float64 (rows, 1) or (rows, classes)."""
        known = dict(self._tensors, values=values)
        with torch.no_grad():
            for step in self.facts["operations"]:
                inputs = [known[name] for name in step["inputs"]]
                known[step["output"]] = _computed(step["name"], inputs, step["attributes"])
        return known[self.facts["result"]]


def _computed(name: str, inputs: list[Tensor], attributes: dict[str, Any]) -> Tensor:
    if name in _PLAIN:
        return _PLAIN[name](*inputs)
    first = inputs[0]
    if name in ("softmax", "sum", "mean"):
        if name == "softmax":
            return torch.softmax(first, -1)
        return torch.sum(first, -1, keepdim=True) if name == "sum" else torch.mean(first, -1, keepdim=True)
    if name == "cast":
        return first.to(getattr(torch, attributes["to"]))
    if name == "concatenate":
        return torch.cat(inputs, dim=attributes["axis"])
    if name == "reshape":
        return first.reshape(attributes["shape"])
    if name == "transpose":
        return first.permute(attributes["order"])
    if name == "slice":
        return first.narrow(attributes["axis"], attributes["start"], attributes["stop"] - attributes["start"])
    if name == "gather":
        return first[:, attributes["places"]]
    if name == "forest":
        return _forest(*inputs)
    raise ValueError(f"an operation that this loader does not know: {name}")


def _forest(
    rows: Tensor, roots: Tensor, columns: Tensor, thresholds: Tensor, children: Tensor, values: Tensor
) -> Tensor:
    """The mean of the leaves that rows reach; a leaf's children are the leaf itself."""
    at = roots.expand(len(rows), -1)
    while True:
        above = (rows.gather(1, columns[at]) > thresholds[at]).long()
        then = children[at, above]
        if torch.equal(then, at):
            return values[at].mean(dim=1)
        at = then


def _cell(column: dict[str, Any], row: dict[str, Any]) -> float | None:
    """A row's cell as the model reads it; None also where the row lacks a column that the contract requires."""
    name = column["name"]
    return None if name not in row and column.get("required", True) else _number(column, row.get(name))


def _number(column: dict[str, Any], cell: Any) -> float | None:
    """A cell as the model reads it; None where it must not answer."""
    text = "" if cell is None else str(cell).strip()
    number = _plain(text)
    is_missing = text in column["missing"] or (number is not None and number in map(_plain, column["missing"]))
    if column["codes"] is not None:
        spelt = [
            place
            for place, code in enumerate(column["codes"])
            if code == text or (number is not None and _plain(code) == number)
        ]
        if spelt:
            return float(spelt[0])
        return None if column["refuses_missing"] else -1.0
    if is_missing:
        return None if column["refuses_missing"] else math.nan
    low, high = column["low"], column["high"]
    if number is None or (low is not None and number < low) or (high is not None and number > high):
        return None
    return number


def _plain(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _tensors(raw: bytes) -> dict[str, Tensor]:
    """The arrays of a safetensors file: eight bytes with the length of a JSON header, the header, the numbers."""
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
