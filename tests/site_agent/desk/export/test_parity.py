"""Predictions and the exported module are the same model for every network, task and encoding."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from protos.plan.architecture import network_tensors
from site_agent.desk.applied import AppliedModel
from site_agent.desk.export.export_folder import checked_onnx, encoded, onnx_bytes, run_onnx, scoring_module, tolerance
from site_agent.desk.export.export_inputs import made_up_values
from site_agent.desk.results.saved_model import SavedModel
from site_agent.hospital import Training
from site_agent.trainer.data.column_profile import profile_of
from site_agent.trainer.data.columns import CategoricalFeature
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.preprocessing import fit
from site_agent.trainer.data.tables import Table
from tests.for_each import for_each
from tests.site_agent.trainer.sites import SMALL, make_plan

TARGETS: dict[str, dict[str, object]] = {
    "binary": {"task": "binary", "positive": ["1"]},
    "multi-class": {"task": "multi-class", "codes": ["a", "b", "c"]},
    "regression": {"task": "regression"},
}
NETWORKS: dict[str, dict[str, object]] = {
    "global-layers": SMALL,
    "global-layers with everything": SMALL
    | {"gate": True, "input_normalisation": True, "transformer_blocks": 1, "dropout": 0.3},
    "global-layers without entities": SMALL | {"entities": False, "transformer_blocks": 0},
    "logistic": {"name": "dense", "hidden": []},
    "dense": {"name": "dense", "hidden": [7, 5, 4], "activation": "gelu", "dropout": 0.2},
    "parallel": {"name": "parallel", "common": [6, 4], "unique": [5], "activation": "tanh"},
    "columns": {"name": "columns", "hidden": [6, 6], "lateral": 0.5, "activation": "selu"},
}  # fmt: skip
METHODS = {
    "logistic": "local", "parallel": "fenda-fl", "columns": "chfl",
}  # fmt: skip


def contract(task: str) -> Contract:
    """A contract with every encoding that there is."""
    feature = {"role": "feature"}
    columns = [
        feature | {"name": "age", "type": "numeric"},
        feature | {"name": "chol", "type": "numeric", "missing": "median-and-flag"},
        feature | {"name": "bmi", "type": "numeric", "missing": "median"},
        feature | {"name": "crp", "type": "numeric"},
        feature | {"name": "sex", "type": "categorical", "codes": ["0", "1"]},
        feature | {"name": "pain", "type": "categorical", "codes": ["1", "2", "3"], "encoding": "one-hot"},
        feature
        | {"name": "ward", "type": "categorical", "codes": ["x", "y", "z"], "encoding": "one-hot",
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
    table, rows = Table(contract=declared, rows=80, features=features, target=target, patients=None), np.arange(60)
    preprocessing, method = fit(declared, table, rows), METHODS.get(network, "global-layers")
    agreed = {"columns": list(preprocessing.columns[:5])} if method in ("fenda-fl", "chfl") else {}
    outputs = {"outputs": 3 if task == "multi-class" else 1} if method == "chfl" else {}
    made = make_plan(method={"name": method}, architecture=NETWORKS[network], **agreed, **outputs, **plan)
    saved = SavedModel(plan=made, preprocessing=preprocessing, values={}, profile=profile_of(declared, table, rows))
    tensors = network_tensors(made.architecture, columns=len(saved.columns), outputs=saved.outputs, common=saved.common)
    values = {one.name: generator.normal(0, 0.4, one.shape).astype(np.float32) for one in tensors}
    return SavedModel(plan=made, preprocessing=preprocessing, values=values, profile=saved.profile)


def applied(saved: SavedModel) -> AppliedModel:
    """The model as `predict` uses it."""
    return AppliedModel(saved, "law-1", Training())


def check(saved: SavedModel, seed: int = 1) -> None:
    """The one module that is exported answers as `predict` does, up to rounding."""
    used, values = applied(saved), made_up_values(saved.preprocessing.contract, saved.profile, 64, seed)
    features, scale = encoded(saved, values), saved.preprocessing.target_scale
    expected = used.scores(features)
    with torch.no_grad():
        found = scoring_module(used)(torch.from_numpy(values)).numpy()
    assert np.ptp(expected, axis=0).max() > 1e-3
    unit = 1.0 if scale is None else scale.deviation
    assert np.abs(found - expected.reshape(found.shape)).max() / unit <= tolerance(used, features)


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_is_written_down(network: str) -> None:
    """The exported module agrees with the program's own prediction, whatever the plan names."""
    check(model(network))


@pytest.mark.parametrize(
    "network", [one if one == "dense" else pytest.param(one, marks=pytest.mark.slow) for one in NETWORKS]
)
def test_every_network_can_be_converted(network: str) -> None:
    """ONNX computes what the program computes, for any number of rows, and each node has a name of its own."""
    onnx = pytest.importorskip("onnx")

    content, difference, allowed = checked_onnx(applied(model(network)))

    names = [node.name for node in onnx.load_from_string(content).graph.node]
    assert difference <= allowed
    assert all(names)
    assert len(set(names)) == len(names)


def test_converted_columns_are_the_same_to_the_bit() -> None:
    """Else a value that is as large as a threshold of a tree could take the other branch. Fractions and steps."""
    pytest.importorskip("onnxruntime")
    saved = model()
    values = made_up_values(saved.preprocessing.contract, saved.profile, 256, 1)
    values[100:, :4] = np.round(values[100:, :4], 1)

    converted = run_onnx(onnx_bytes(scoring_module(applied(saved)).encoding, values[:3]), values)

    np.testing.assert_array_equal(converted, encoded(saved, values))


IMAGES: dict[str, dict[str, Any]] = {
    "blocks alone": {"name": "convolutional", "blocks": [3], "hidden": []},
    "blocks and layers": {"name": "convolutional", "blocks": [3, 4, 2], "hidden": [5, 4], "activation": "gelu"},
    "normalised": {"name": "convolutional", "blocks": [3, 4], "normalisation": True, "activation": "selu"},
    "pixels as columns": {"name": "dense", "hidden": [5]},
}


def _image_model(network: str, channels: int, window: list[int] | None) -> SavedModel:
    generator, size = np.random.default_rng(5), {"height": 5, "width": 7, "channels": channels}
    scan = {"name": "scan", "role": "image", "folder": "scans", "image": size, "window": window}
    columns = [scan, {"name": "outcome", "role": "target"} | TARGETS["multi-class"]]
    declared = Contract.model_validate_json(json.dumps({"format": {"header": True}, "columns": columns}))
    images, target = generator.random((40, 35 * channels), dtype=np.float32), generator.integers(0, 3, 40) * 1.0
    table = Table(contract=declared, rows=40, features={}, target=target, patients=None, images=images)
    architecture = IMAGES[network] | ({} if network == "pixels as columns" else {"image": size})
    made, rows = make_plan(method={"name": "local"}, architecture=architecture), np.arange(30)
    preprocessing = fit(declared, table, rows)
    tensors = network_tensors(made.architecture, columns=35 * channels, outputs=3)
    values = {one.name: generator.normal(0, 0.4, one.shape).astype(np.float32) for one in tensors}
    profile = profile_of(declared, table, rows)
    return SavedModel(plan=made, preprocessing=preprocessing, values=values, profile=profile)


@pytest.mark.parametrize("window", [None, [40, 200]])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("network", IMAGES)
def test_every_network_of_images_is_written_down(network: str, channels: int, window: list[int] | None) -> None:
    """The module answers as the program, from a file's own intensities."""
    check(_image_model(network, channels, window))


@pytest.mark.parametrize("task", ["multi-class", "regression"])
def test_every_task_is_written_down(task: str) -> None:
    """Several classes and a number in its own unit too."""
    check(model(task=task))


def _drawn_feature(generator: np.random.Generator, place: int) -> dict[str, object]:
    feature: dict[str, object] = {"name": f"f{place}", "role": "feature"}
    match generator.integers(4):
        case 0 | 1 as kind:
            feature["missing"] = str(generator.choice(["refuse", "median", "median-and-flag"]))
            if kind == 0:
                return feature | {"type": "numeric"}
            end = str(generator.choice(["since", "until"]))
            other = str(generator.choice(["seen", "left", "2001-02-03", "f0"] if place else ["seen", "2001-02-03"]))
            unit = str(generator.choice(["days", "years"]))
            pattern = str(generator.choice(["%Y-%m-%d", "%d.%m.%Y"]))
            if other == "f0":  # which may be missing itself
                feature["missing"] = "median"
            return feature | {"type": "date", end: other, "unit": unit, "pattern": pattern, "future": "allow"}
        case _:
            codes = [f"k{code}" for code in range(int(generator.integers(1, 6)))]
            choices = ["unknown", "refuse", "most-common", "most-common-and-flag"]
            return feature | {
                "type": "categorical",
                "codes": codes,
                "encoding": str(generator.choice(["ordinal", "one-hot"])),
                "missing": str(generator.choice(choices)),
                "fewest_rows": int(generator.integers(1, 20)),
            }


def _drawn_contract(generator: np.random.Generator) -> Contract:
    features = [_drawn_feature(generator, place) for place in range(int(generator.integers(2, 7)))]
    if features[0]["type"] != "date":  # nothing else can be counted from
        features = [one | {end: "seen" for end in ("since", "until") if one.get(end) == "f0"} for one in features]
    days = [{"name": "seen", "role": "date"}, {"name": "left", "role": "date", "pattern": "%d.%m.%Y"}]
    columns = [*features, *days, {"name": "y", "role": "target", "task": "binary", "positive": ["1"]}]
    form = {"header": True, "delimiter": ";", "decimal": str(generator.choice([".", ","]))}
    return Contract.model_validate_json(json.dumps({"format": form, "columns": columns}))


def _drawn_rows(declared: Contract, generator: np.random.Generator, rows: int) -> dict[str, npt.NDArray[np.float64]]:
    features: dict[str, npt.NDArray[np.float64]] = {}
    for feature in declared.features:
        if isinstance(feature, CategoricalFeature):
            first = 0 if feature.missing == "refuse" else -1
            features[feature.name] = generator.integers(first, max(1, len(feature.codes) - 1), rows) * 1.0
        else:
            drawn = np.round(generator.normal(100, 30, rows), int(generator.integers(-1, 3)))
            is_missing = (generator.random(rows) < 0.2) & (feature.missing != "refuse")
            features[feature.name] = np.where(is_missing, np.nan, drawn)
    return features


def _drawn_model(generator: np.random.Generator) -> SavedModel:
    declared = _drawn_contract(generator)
    features, target = _drawn_rows(declared, generator, 80), generator.integers(0, 2, 80) * 1.0
    table, rows = Table(contract=declared, rows=80, features=features, target=target, patients=None), np.arange(60)
    preprocessing, profile = fit(declared, table, rows), profile_of(declared, table, rows)
    plan = make_plan(method={"name": "local"}, architecture=NETWORKS["logistic"])
    tensors = network_tensors(plan.architecture, columns=len(preprocessing.columns), outputs=1, common=None)
    values = {one.name: generator.normal(0, 0.5, one.shape).astype(np.float32) for one in tensors}
    return SavedModel(plan=plan, preprocessing=preprocessing, values=values, profile=profile)


@for_each("seed", range(40))
def test_every_encoding_is_written_down(seed: int) -> None:
    """Numbers, dates and codes however encoded, with missing, rare and unseen values among them."""
    check(_drawn_model(np.random.default_rng(seed)), seed=seed)
