"""Describes a computation as a list of simple operations with constants. An export consists of such a list.

Every operation has a name in NAMES, and the same meaning in torch (loader.py) and in ONNX (onnx_model.py). So a model
is converted once and runs in both. The first axis of a value is rows. Broadcasting follows numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Attribute: TypeAlias = int | str | Sequence[int]
INPUT: Final = "values"
# Prefix of the constants that are tensors of a hospital's own module.
MODULE: Final = "module."
NAMES: Final = frozenset({
    "add", "subtract", "multiply", "divide", "matmul", "maximum", "minimum", "exp", "log", "erf", "tanh", "sigmoid",
    "relu", "selu", "softmax", "sum", "mean", "sqrt", "equal", "greater", "not", "where", "cast", "concatenate",
    "reshape", "transpose", "slice", "gather", "lookup", "forest", "convolution", "largest", "module",
})  # fmt: skip
_CONDITIONS: Final = ("equal", "greater", "not")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One step of a computation: the operation, the names of its inputs, and the name of its result."""

    name: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Attribute]


@dataclass(eq=False)
class Graph:
    """A computation: its operations in order, and its constants by name. Operations and constants are only added."""

    operations: list[Operation] = field(default_factory=list)
    constants: dict[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    result: str = INPUT

    @property
    def input(self) -> Value:
        """The input of the graph, float64 of shape (rows, inputs)."""
        return Value(self, INPUT, "float64")

    def constant(self, values: npt.ArrayLike, dtype: str = "float32") -> Value:
        """Add a constant to the graph. Equal constants are not merged."""
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(np.asarray(values, dtype=dtype)).reshape(np.shape(values))
        return Value(self, name, dtype)

    def finish(self, value: Value) -> None:
        """Mark a value as the result of the whole computation (graph)."""
        self.result = value.name


@dataclass(frozen=True, eq=False)
class Value:
    """A value of a graph. Arithmetic with a value adds an operation to its graph.

    A number or an array beside it becomes a constant of the same `dtype`.
    """

    graph: Graph
    name: str
    dtype: str

    def apply(self, operation: str, *others: Operand, **attributes: Attribute) -> Value:
        """Add an operation to the graph, and return its result. This value is the operation's first input."""
        if operation not in NAMES:
            raise ValueError(f"{operation} is no operation of exports")
        inputs = (self, *(one if isinstance(one, Value) else self.graph.constant(one, self.dtype) for one in others))
        # The last input has the type of the result. The first one can be a condition.
        dtype = "bool" if operation in _CONDITIONS else str(attributes.get("to", inputs[-1].dtype))
        output = f"value{len(self.graph.operations)}"
        names = tuple(one.name for one in inputs)
        self.graph.operations.append(Operation(name=operation, inputs=names, output=output, attributes=attributes))
        return Value(self.graph, output, dtype)

    def __add__(self, other: Operand) -> Value:
        return self.apply("add", other)

    def __sub__(self, other: Operand) -> Value:
        return self.apply("subtract", other)

    def __rsub__(self, other: npt.ArrayLike) -> Value:
        return self.graph.constant(other, self.dtype) - self

    def __mul__(self, other: Operand) -> Value:
        return self.apply("multiply", other)

    def __truediv__(self, other: Operand) -> Value:
        return self.apply("divide", other)

    def __matmul__(self, other: Operand) -> Value:
        return self.apply("matmul", other)

    def cast(self, dtype: str) -> Value:
        """Return the value with its numbers converted to another type."""
        return self.apply("cast", to=dtype)

    def reshape(self, *shape: int) -> Value:
        """Return the value in another shape. The size -1 stands for the number of rows."""
        return self.apply("reshape", shape=shape)

    def columns(self, start: int, stop: int, axis: int = 1) -> Value:
        """Slice the value along an axis, from `start` up to, but not including, `stop`."""
        return self.apply("slice", axis=axis, start=start, stop=stop)

    def beside(self, *others: Value, axis: int = 1) -> Value:
        """Concatenate the value with others along an axis."""
        return self.apply("concatenate", *others, axis=axis) if others else self

    def chosen(self, value: Value, other: Operand) -> Value:
        """Return `value` where this condition is true, and `other` elsewhere."""
        return self.apply(
            "where", value, other if isinstance(other, Value) else self.graph.constant(other, value.dtype)
        )

    def clipped(self, low: npt.ArrayLike, high: npt.ArrayLike) -> Value:
        """Return the value limited to the range from low to high."""
        return self.apply("maximum", low).apply("minimum", high)

    def interpolated(self, xs: npt.ArrayLike, ys: npt.ArrayLike) -> Value:
        """Interpolate the value, float64 (rows, 1), linearly between rising points. Outside them it stays constant."""
        knots, heights = np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64)
        # If several points have the same x, as at a step, the last of these points is used, as in numpy's interp.
        kept = np.append(np.diff(knots) > 0, True)
        knots, heights = knots[kept], heights[kept]
        if len(knots) == 1:
            return self * [[0.0]] + [[heights[0]]]
        inside: Value = ((self - knots[None, :-1]) / np.diff(knots)[None, :]).clipped([[0.0]], [[1.0]])
        return inside.apply("matmul", np.diff(heights)[:, None]).apply("add", [[heights[0]]])


Operand: TypeAlias = Value | npt.ArrayLike
