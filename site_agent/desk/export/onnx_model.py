"""Writes an export as an ONNX model for programs without PyTorch. This needs the extra package `onnx`.

The nodes are written from the same operations that the loader computes. torch's own exporter converts only a
hospital's own module. Input `values`: float64 (rows, inputs), see onnx_inputs.py; output `scores`: float64.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from protos.errors import ConfigurationError, to_install
from site_agent.desk.export.graph import INPUT, MODULE, Graph, Operation
from site_agent.desk.export.own_network import OwnNetwork, traced

OUTPUT: Final = "scores"
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
    made.nodes.append(helper.make_node("Identity", [graph.result], [OUTPUT], name=OUTPUT))
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
    """Return onnxruntime's predictions for float64 (rows, inputs). Raises ConfigurationError if it is not installed."""
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

    def write(self, one: Operation) -> None:
        """Append the ONNX nodes of an operation."""
        match one.name:
            case name if name in _PLAIN:
                self._add(_PLAIN[name], one)
            case "softmax":
                self._add("Softmax", one, axis=-1)
            case "sum":
                self._add("ReduceSum", one, [-1], keepdims=1)
            case "mean":
                self._add("ReduceMean", one, axes=[-1], keepdims=1)
            case "concatenate":
                self._add("Concat", one, axis=one.attributes["axis"])
            case "transpose":
                self._add("Transpose", one, perm=one.attributes["order"])
            case "reshape":
                self._add("Reshape", one, one.attributes["shape"])
            case "gather":
                self._add("Gather", one, one.attributes["places"], axis=1)
            case "slice":
                self._add("Slice", one, *([one.attributes[key]] for key in ("start", "stop", "axis")))
            case "largest":
                self._add("MaxPool", one, kernel_shape=[2, 2], strides=[2, 2])
            case "cast":
                is_double = one.attributes["to"] == "float64"
                self._add("Cast", one, to=self._types.DOUBLE if is_double else self._types.FLOAT)
            case "convolution":
                side, stride = self._constants[one.inputs[1]].shape[-1], one.attributes["stride"]
                sizes = {"kernel_shape": [side, side], "pads": [side // 2] * 4, "strides": [stride, stride]}
                self._add("Conv", one, group=one.attributes["groups"], **sizes)
            case "lookup":
                self._node("Cast", one.inputs[1:], f"{one.output}places", to=self._types.INT64)
                self._node("Gather", (one.inputs[0], f"{one.output}places"), one.output, axis=0)
            case "forest":
                self._forest(one)
            case "module":
                self._module(one)
            case _:
                raise ValueError(f"{one.name} has no ONNX node")

    def initializers(self) -> list[Any]:
        """Return the constants of the graph that at least one node reads."""
        kept = {name: array for name, array in self._constants.items() if name not in self._dropped}
        own = [] if self._own is None else list(self._own.initializer)
        return [*(self._numpy.from_array(array, name) for name, array in kept.items()), *own]

    def _node(self, kind: str, inputs: tuple[str, ...], output: str, **attributes: Any) -> None:
        self.nodes.append(self._helper.make_node(kind, list(inputs), [output], name=output, **attributes))

    def _add(self, kind: str, one: Operation, *numbers: Any, **attributes: Any) -> None:
        """Append a node with an operation's inputs and output. Whole numbers in `numbers` become further inputs."""
        names = [f"whole{len(self._constants) + place}" for place in range(len(numbers))]
        self._constants |= {name: np.array(each, dtype=np.int64) for name, each in zip(names, numbers, strict=True)}
        self._node(kind, (*one.inputs, *names), one.output, **attributes)

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


def _missing(package: str, cause: ImportError) -> ConfigurationError:
    return ConfigurationError(
        what=f"The package {package} is not installed. ONNX requires the package ({type(cause).__name__}).",
        consequence="The model was not exported to an ONNX file, and nothing was sent.",
        remedy=f"Export without --onnx. Or install the extra `onnx`. {to_install('onnx')}",
    )
