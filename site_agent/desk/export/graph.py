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
NAMES: Final = frozenset(
    {
        "add",
        "subtract",
        "multiply",
        "divide",
        "matmul",
        "maximum",
        "minimum",
        "exp",
        "log",
        "erf",
        "tanh",
        "sigmoid",
        "relu",
        "selu",
        "softmax",
        "sum",
        "mean",
        "sqrt",
        "equal",
        "greater",
        "not",
        "where",
        "cast",
        "concatenate",
        "reshape",
        "transpose",
        "slice",
        "gather",
        "lookup",
        "forest",
        "convolution",
        "largest",
        "module",
    }
)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One step of a computation: the operation, the names of its inputs, and the name of its result."""

    name: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Attribute]


@dataclass(eq=False)
class Graph:
    """A computation: its operations in order, and its constants by name. Both are only added, never removed."""

    operations: list[Operation] = field(default_factory=list)
    constants: dict[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    result: str = INPUT

    def constant(self, values: npt.ArrayLike, dtype: str = "float32") -> str:
        """Add a constant to the graph and return its name. Equal constants are not merged."""
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(np.asarray(values, dtype=dtype)).reshape(np.shape(values))
        return name

    def apply(self, operation: str, *inputs: str, **attributes: Attribute) -> str:
        """Add an operation to the graph and return the name of its result."""
        if operation not in NAMES:
            raise ValueError(f"{operation} is no operation of exports")
        output = f"value{len(self.operations)}"
        self.operations.append(Operation(name=operation, inputs=inputs, output=output, attributes=attributes))
        return output

    def finish(self, value: str) -> None:
        """Mark a value as the result of the whole graph."""
        self.result = value

    def columns(self, value: str, start: int, stop: int, axis: int = 1) -> str:
        """Slice a value of the graph along an axis, from `start` up to, but not including, `stop`."""
        return self.apply("slice", value, axis=axis, start=start, stop=stop)

    def clipped(self, value: str, low: npt.ArrayLike, high: npt.ArrayLike, dtype: str = "float64") -> str:
        """Limit a value of the graph to the range from low to high."""
        raised = self.apply("maximum", value, self.constant(low, dtype))
        return self.apply("minimum", raised, self.constant(high, dtype))

    def interpolated(self, value: str, xs: npt.ArrayLike, ys: npt.ArrayLike) -> str:
        """Interpolate a value of the graph, float64 (rows, 1), linearly between rising points.

        Outside it is constant.
        """
        knots, heights = np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64)
        # If several points have the same x, as at a step, the last of these points is used, as in numpy's interp.
        kept = np.append(np.diff(knots) > 0, True)
        knots, heights = knots[kept], heights[kept]
        if len(knots) == 1:
            zero = self.apply("multiply", value, self.constant([[0.0]], "float64"))
            return self.apply("add", zero, self.constant([[heights[0]]], "float64"))
        widths = np.diff(knots)
        shares = self.apply("divide", self.apply("subtract", value, self.constant(knots[None, :-1], "float64")),
                            self.constant(widths[None, :], "float64"))  # fmt: skip
        inside = self.clipped(shares, [[0.0]], [[1.0]])
        climbed = self.apply("matmul", inside, self.constant(np.diff(heights)[:, None], "float64"))
        return self.apply("add", climbed, self.constant([[heights[0]]], "float64"))
