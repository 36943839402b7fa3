#!/usr/bin/env bash
# onnxruntime 1.32.0: the largest of several numbers is missing if the first one is, and otherwise the largest of the others. The
# place of the largest is always that of the missing number. Guess: missing in all three lines, as in numpy and torch.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "[nan, 1, 2]: largest nan at 0
[1, nan, 2]: largest 2.0 at 2
[1, 2, nan]: largest 2.0 at 1" numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 <<'PY'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper


def answer(operator, kind, values):
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], keepdims=0)], "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])], [helper.make_tensor_value_info("y", kind, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.array(values, np.float32)})[0].item()


missing = float("nan")
for values in ([missing, 1, 2], [1, missing, 2], [1, 2, missing]):
    largest, place = answer("ReduceMax", TensorProto.FLOAT, values), answer("ArgMax", TensorProto.INT64, values)
    print(f"{values}: largest {largest} at {place}")
PY
