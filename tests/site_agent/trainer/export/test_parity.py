"""Predictions, the loader and ONNX are one model: for every network, task, encoding and recalibration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protos.architecture import network_tensors
from protos.errors import ConfigurationError
from site_agent.config import Training
from site_agent.trainer.advice import added_columns
from site_agent.trainer.applied import AppliedModel
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.preprocessing import fit
from site_agent.trainer.data.profile import profile_of
from site_agent.trainer.data.tables import Table
from site_agent.trainer.export import loader
from site_agent.trainer.export.folder import LARGEST_DIFFERENCE, answers, description_of, made_up_values
from site_agent.trainer.export.onnx_model import onnx_bytes, run_onnx
from site_agent.trainer.export.written import written_down
from site_agent.trainer.saved_model import SavedModel
from site_agent.trainer.use.recalibration import IsotonicMap, PlattMap, Recalibration
from tests.site_agent.trainer.sites import SMALL, make_plan

TARGETS: dict[str, dict[str, object]] = {
    "binary": {"task": "binary", "positive": ["1"]},
    "multi-class": {"task": "multi-class", "codes": ["a", "b", "c"]},
    "regression": {"task": "regression"},
}
NETWORKS: dict[str, dict[str, object]] = {
    "global-layers": SMALL,
    "global-layers with everything": SMALL
    | {"gate": True, "input_normalisation": True, "linear_path": True, "transformer_blocks": 2, "dropout": 0.3},
    "global-layers without entities": SMALL | {"entities": False, "transformer_blocks": 0},
    "logistic": {"name": "dense", "hidden": []},
    "dense": {"name": "dense", "hidden": [7, 5, 4], "activation": "gelu", "dropout": 0.2},
    "feature-tokens": {"name": "feature-tokens", "width": 8, "heads": 2, "blocks": 2, "hidden": 6},
    "feature-tokens with gelu": {
        "name": "feature-tokens", "width": 8, "heads": 4, "blocks": 1, "hidden": 6, "activation": "gelu",
    },
    "parallel": {"name": "parallel", "common": [6, 4], "unique": [5], "activation": "tanh"},
    "columns": {"name": "columns", "hidden": [6, 6], "lateral": 0.5, "activation": "selu"},
}  # fmt: skip
# Drawn so that the answers differ between rows and are not all near 0 or 1.
SPREADS = {"global-layers with everything": 0.15, "feature-tokens": 1.0, "feature-tokens with gelu": 1.0}
METHODS = {
    "logistic": "local", "parallel": "fenda-fl", "columns": "chfl",
}  # fmt: skip


def contract(task: str) -> Contract:
    """A contract with every encoding that there is."""
    feature = {"role": "feature"}
    columns = [
        feature | {"name": "age", "type": "numeric"},
        feature | {"name": "chol", "type": "numeric", "missing": "median-and-flag"},
        feature | {"name": "bmi", "type": "numeric", "encoding": "quantile", "missing": "median"},
        feature | {"name": "crp", "type": "numeric", "encoding": "piecewise-linear", "bins": 4},
        feature | {"name": "sex", "type": "categorical", "codes": ["0", "1"]},
        feature | {"name": "pain", "type": "categorical", "codes": ["1", "2", "3"], "encoding": "one-hot"},
        feature
        | {"name": "ward", "type": "categorical", "codes": ["x", "y", "z"], "encoding": "embedding", "width": 2,
           "missing": "most-common-and-flag"},
        {"name": "outcome", "role": "target"} | TARGETS[task],
    ]  # fmt: skip
    return Contract.model_validate_json(json.dumps({"format": {"header": True}, "columns": columns}))


def model(network: str = "global-layers", task: str = "binary", **plan: Any) -> SavedModel:
    """A saved model with drawn values, its preprocessing fitted to drawn rows."""
    declared, generator = contract(task), np.random.default_rng(3)
    features = {
        feature.name: generator.normal(50, 20, 80) if feature.type == "numeric" else generator.integers(-1, 2, 80) * 1.0
        for feature in declared.features
    }
    for name in ("chol", "bmi"):
        features[name][:7] = np.nan
    target = generator.normal(100, 9, 80) if task == "regression" else generator.integers(0, 2, 80) * 1.0
    table = Table(contract=declared, rows=80, features=features, target=target, patients=None)
    rows = np.arange(60)
    preprocessing = fit(declared, table, rows)
    method = METHODS.get(network, "global-layers")
    agreed = {"columns": list(preprocessing.columns[:5])} if method in ("fenda-fl", "chfl") else {}
    outputs = {"outputs": 3 if task == "multi-class" else 1} if method == "chfl" else {}
    options = {"name": method}
    made = make_plan(method=options, architecture=NETWORKS[network], **agreed, **outputs, **plan)
    saved = SavedModel(
        plan=made, preprocessing=preprocessing, values={}, report={}, profile=profile_of(declared, table, rows)
    )
    tensors = network_tensors(
        made.architecture,
        columns=len(saved.columns) + added_columns(made, saved.outputs),
        outputs=saved.outputs,
        common=saved.common,
    )
    values = {one.name: generator.normal(0, SPREADS.get(network, 0.4), one.shape).astype(np.float32) for one in tensors}
    return SavedModel(plan=made, preprocessing=preprocessing, values=values, report={}, profile=saved.profile)


def differences(saved: SavedModel, changed: Recalibration | None = None) -> tuple[float, float]:
    """By how much the loader and ONNX differ from what `predict` computes."""
    values = made_up_values(saved, rows=64)
    graph = written_down(saved, changed)
    said = answers(AppliedModel(saved, "law-1", Training()), values, changed)
    facts = json.loads(json.dumps(description_of(saved, graph, "law-1"), allow_nan=False))
    tensors = {name: torch.from_numpy(array.copy()) for name, array in graph.constants.items()}
    loaded = loader.Exported(facts, tensors).scores(torch.from_numpy(values)).numpy()
    onnx = run_onnx(onnx_bytes(graph, values.shape[1], saved.outputs), values)
    scale = saved.preprocessing.target_scale
    unit = 1.0 if scale is None else scale.deviation
    expected = said.reshape(loaded.shape)
    assert np.ptp(expected, axis=0).max() > 1e-3
    return float(np.abs(loaded - expected).max()) / unit, float(np.abs(onnx - expected).max()) / unit


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_is_written_down(network: str) -> None:
    """Loader and ONNX agree with the program's own prediction to 1e-5, whatever the plan names."""
    pytest.importorskip("onnxruntime")

    assert max(differences(model(network))) <= LARGEST_DIFFERENCE


@pytest.mark.parametrize("task", ["multi-class", "regression"])
def test_every_task_is_written_down(task: str) -> None:
    """Several classes and a number in its own unit too."""
    pytest.importorskip("onnxruntime")

    assert max(differences(model(task=task))) <= LARGEST_DIFFERENCE


@pytest.mark.parametrize(
    ("task", "one"),
    [
        ("binary", PlattMap(intercept=0.3, slope=1.4)),
        ("binary", IsotonicMap(xs=(0.1, 0.3, 0.3, 0.8), ys=(0.0, 0.2, 0.5, 0.9))),
        ("multi-class", PlattMap(intercept=-0.2, slope=0.8)),
        ("multi-class", IsotonicMap(xs=(0.1, 0.3, 0.8), ys=(0.0, 0.5, 0.9))),
    ],
)
def test_a_recalibration_is_written_down(task: str, one: PlattMap | IsotonicMap) -> None:
    """The export gives the probabilities that the site itself uses."""
    pytest.importorskip("onnxruntime")
    changed = Recalibration(maps=(one,) * (3 if task == "multi-class" else 1), rows=50)

    assert max(differences(model(task=task), changed)) <= LARGEST_DIFFERENCE


def test_a_hospitals_own_module_cannot_be_written_down() -> None:
    """It is code; the operator is told, and what to do instead."""
    tensors = [{"name": "shared.weight", "shape": [4, 4], "bound": 0.5}]
    saved = model()
    own = make_plan(architecture={"name": "named-tensors", "tensors": tensors})
    changed = SavedModel(plan=own, preprocessing=saved.preprocessing, values={}, report={}, profile=saved.profile)

    with pytest.raises(ConfigurationError, match="own module"):
        written_down(changed, None)


def test_the_loader_needs_torch_alone(tmp_path: Path) -> None:
    """Its file imports nothing outside of Python itself but torch."""
    lines = Path(loader.__file__).read_text().splitlines()

    outside = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}

    assert outside == {"__future__", "json", "math", "collections", "pathlib", "typing", "torch"}
