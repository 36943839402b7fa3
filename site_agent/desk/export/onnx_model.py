"""Writes an export as an ONNX model for programs without PyTorch. This needs the extra package `onnx`.

The nodes are written from the same operations that the loader computes. torch's own exporter converts only a
hospital's own module. Input `values`: float64 (rows, inputs), see onnx_inputs.py; output `scores`: float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from protos.errors import ConfigurationError
from site_agent.desk.export.graph import INPUT, MODULE, Graph, Operation
from site_agent.desk.export.own_network import OwnNetwork, traced

OUTPUT: Final = "scores"
LARGEST_DIFFERENCE: Final = 1e-5
_OPSET: Final = 17
_TREES_OPSET: Final = 3
_FORMAT: Final = 8
_PLAIN: Final = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "matmul": "MatMul", "maximum": "Max",
    "minimum": "Min", "exp": "Exp", "log": "Log", "erf": "Erf", "tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "Relu",
    "selu": "Selu", "sqrt": "Sqrt", "equal": "Equal", "greater": "Greater", "not": "Not", "where": "Where",
}  # fmt: skip


def onnx_bytes(graph: Graph, inputs: int, outputs: int, own: OwnNetwork | None = None) -> bytes:
    """Return the bytes of model.onnx, checked by ONNX's checker.

    `own` is the hospital's own module, if the graph uses it.

    Raises:
        ConfigurationError: the package onnx is not installed, or the module cannot be converted.
    """
    try:
        import onnx
        from onnx import helper, numpy_helper
    except ImportError as cause:
        raise _missing("onnx", cause) from cause
    module = None if own is None else _module(onnx, own)
    made = _Writer(graph, helper, onnx.TensorProto, numpy_helper, module)
    for operation in graph.operations:
        made.write(operation)
    made.nodes.append(helper.make_node("Identity", [graph.result], [OUTPUT]))
    double = onnx.TensorProto.DOUBLE
    whole = helper.make_graph(
        made.nodes,
        "global-layers",
        [helper.make_tensor_value_info(INPUT, double, ["rows", inputs])],
        [helper.make_tensor_value_info(OUTPUT, double, ["rows", outputs])],
        made.initializers(),
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _TREES_OPSET)]
    model = helper.make_model(whole, opset_imports=opsets, producer_name="global-layers", ir_version=_FORMAT)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def run_onnx(content: bytes, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the predictions of onnxruntime for float64 rows (rows, inputs).

    Raises:
        ConfigurationError: the package onnxruntime is not installed.
    """
    try:
        import onnxruntime as runtime
    except ImportError as cause:
        raise _missing("onnxruntime", cause) from cause
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return np.asarray(session.run([OUTPUT], {INPUT: values})[0], dtype=np.float64)


class _Writer:
    """Converts operations to ONNX nodes. Numbers that an ONNX node reads as inputs become initializers."""

    def __init__(self, graph: Graph, helper: Any, types: Any, numpy_helper: Any, module: Any) -> None:
        self.nodes: list[Any] = []
        self._helper, self._types, self._numpy, self._own = helper, types, numpy_helper, module
        self._constants = {name: array for name, array in graph.constants.items() if not name.startswith(MODULE)}
        self._dropped: set[str] = set()

    def write(self, operation: Operation) -> None:
        """Append the ONNX nodes of an operation."""
        if operation.name in _PLAIN:
            self._node(_PLAIN[operation.name], operation.inputs, operation.output)
        else:
            writers: Mapping[str, Callable[[Operation], None]] = {
                "softmax": lambda one: self._node("Softmax", one.inputs, one.output, axis=-1),
                "sum": lambda one: self._node("ReduceSum", (*one.inputs, self._whole([-1])), one.output, keepdims=1),
                "mean": lambda one: self._node("ReduceMean", one.inputs, one.output, axes=[-1], keepdims=1),
                "concatenate": lambda one: self._node("Concat", one.inputs, one.output, axis=one.attributes["axis"]),
                "transpose": lambda one: self._node(
                    "Transpose", one.inputs, one.output, perm=list(_whole(one, "order"))
                ),
                "reshape": lambda one: self._node(
                    "Reshape", (*one.inputs, self._whole(_whole(one, "shape"))), one.output
                ),
                "gather": lambda one: self._node(
                    "Gather", (*one.inputs, self._whole(_whole(one, "places"))), one.output, axis=1
                ),
                "lookup": self._lookup,
                "convolution": self._convolution,
                "largest": lambda one: self._node(
                    "MaxPool", one.inputs, one.output, kernel_shape=[2, 2], strides=[2, 2]
                ),
                "cast": self._cast,
                "slice": self._slice,
                "forest": self._forest,
                "module": self._module,
            }
            writers[operation.name](operation)

    def initializers(self) -> list[Any]:
        """Return the constants of the graph that at least one node reads."""
        kept = {name: array for name, array in self._constants.items() if name not in self._dropped}
        own = [] if self._own is None else list(self._own.initializer)
        return [*(self._numpy.from_array(array, name) for name, array in kept.items()), *own]

    def _node(self, kind: str, inputs: tuple[str, ...], output: str, **attributes: Any) -> None:
        self.nodes.append(self._helper.make_node(kind, list(inputs), [output], **attributes))

    def _whole(self, numbers: Any) -> str:
        name = f"whole{len(self._constants)}"
        self._constants[name] = np.array(numbers, dtype=np.int64)
        return name

    def _lookup(self, one: Operation) -> None:
        places = f"{one.output}places"
        self._node("Cast", one.inputs[1:], places, to=self._types.INT64)
        self._node("Gather", (one.inputs[0], places), one.output, axis=0)

    def _convolution(self, one: Operation) -> None:
        side, stride = self._constants[one.inputs[1]].shape[-1], one.attributes["stride"]
        sizes = {"kernel_shape": [side, side], "pads": [side // 2] * 4, "strides": [stride, stride]}
        self._node("Conv", one.inputs, one.output, group=one.attributes["groups"], **sizes)

    def _cast(self, one: Operation) -> None:
        to = self._types.DOUBLE if one.attributes["to"] == "float64" else self._types.FLOAT
        self._node("Cast", one.inputs, one.output, to=to)

    def _slice(self, one: Operation) -> None:
        ends = [self._whole([one.attributes[key]]) for key in ("start", "stop", "axis")]
        self._node("Slice", (*one.inputs, *ends), one.output)

    def _module(self, one: Operation) -> None:
        """Append the nodes that torch wrote for the hospital's own module, and connect them to the graph."""
        self._node("Identity", one.inputs, self._own.input[0].name)
        self.nodes.extend(self._own.node)
        self._node("Identity", (self._own.output[0].name,), one.output)

    def _forest(self, one: Operation) -> None:
        """Append a forest as ONNX's operator for trees, in which the nodes of each tree are numbered from 0."""
        features, *names = one.inputs
        thresholds, values = (self._constants[name].astype(np.float64) for name in (names[2], names[4]))
        roots, columns, children = (self._constants[name].astype(np.int64) for name in (names[0], names[1], names[3]))
        self._dropped.update(names)
        nodes, answers = np.arange(len(columns)), values.shape[1]
        trees = np.searchsorted(roots, nodes, side="right") - 1
        within = nodes - roots[trees]
        is_leaf = children[:, 0] == nodes
        leaves = np.repeat(nodes[is_leaf], answers)
        self._node("TreeEnsembleRegressor", (features,), f"{one.output}.sum",
            domain="ai.onnx.ml", n_targets=answers, aggregate_function="SUM", post_transform="NONE",
            nodes_treeids=trees.tolist(), nodes_nodeids=within.tolist(), nodes_featureids=columns.tolist(),
            nodes_values=np.where(is_leaf, 0.0, thresholds).astype(np.float32).tolist(),
            nodes_modes=["LEAF" if leaf else "BRANCH_LEQ" for leaf in is_leaf],
            nodes_truenodeids=np.where(is_leaf, 0, children[:, 0] - roots[trees]).tolist(),
            nodes_falsenodeids=np.where(is_leaf, 0, children[:, 1] - roots[trees]).tolist(),
            target_treeids=trees[leaves].tolist(), target_nodeids=within[leaves].tolist(),
            target_ids=np.tile(np.arange(answers), int(is_leaf.sum())).tolist(),
            target_weights=(values[is_leaf] / len(roots)).reshape(-1).astype(np.float32).tolist(),
        )  # fmt: skip
        self._node("Cast", (f"{one.output}.sum",), one.output, to=self._types.DOUBLE)


def _module(onnx: Any, own: OwnNetwork) -> Any:
    """Return the ONNX graph of the hospital's own module. A prefix makes its names different from all other names."""
    from onnx import compose

    return compose.add_prefix(onnx.load_from_string(traced(own, _OPSET)), "own/").graph


def _whole(one: Operation, key: str) -> list[int]:
    found = one.attributes[key]
    assert not isinstance(found, int | str)
    return list(found)


def _missing(package: str, cause: ImportError) -> ConfigurationError:
    return ConfigurationError(
        what=f"The package {package} is not installed. ONNX requires the package ({type(cause).__name__}).",
        consequence="No ONNX model was written, and nothing left this site.",
        remedy='Install the extra: pip install "global-layers[onnx]", or export without --onnx.',
    )
