"""Describes the inputs and outputs of an exported model for the file model.json, which a person reads."""

from __future__ import annotations

from collections.abc import Iterator

from site_agent.desk.export.export_inputs import other_days
from site_agent.desk.results.saved_model import SavedModel
from site_agent.trainer.data.columns import CategoricalFeature, DateFeature, Feature
from site_agent.trainer.disk import Json


def description_of(model: SavedModel, run: str) -> dict[str, Json]:
    """Return the content of the file model.json. Its inputs are in the order of model.onnx's columns."""
    target = model.preprocessing.contract.target
    return {
        "run": run,
        "plan_digest": model.plan.digest.hex(),
        "task": target.task,
        "classes": list(target.classes),
        "outcome": {"unit": target.unit if target.task == "regression" else None},
        "inputs": list(_inputs(model)),
    }


def _inputs(model: SavedModel) -> Iterator[dict[str, Json]]:
    """Yield each input of the model. `limits` are those of the training rows, beyond which nobody tested the model."""
    contract = model.preprocessing.contract
    limits = {one.name: [one.low, one.high] for one in model.profile.columns}
    for feature in contract.features:
        yield {"name": feature.name, **_kind(feature), "limits": limits.get(feature.name)}
    for day in other_days(contract):
        yield {"name": day.name, "kind": "days since 1970-01-01"}
    if (image := contract.image) is not None:
        size = {"channels": image.image.channels, "height": image.image.height, "width": image.image.width}
        yield {"name": image.name, "kind": "intensities: channel by channel, row by row", **size}


def _kind(feature: Feature) -> dict[str, Json]:
    is_refused = feature.missing == "refuse"
    if isinstance(feature, CategoricalFeature):
        missing = None if is_refused else -1
        return {"kind": "position among the codes", "codes": list(feature.codes), "missing": missing}
    missing_number = None if is_refused else "NaN"
    if isinstance(feature, DateFeature):
        since = {"since": feature.since, "until": feature.until, "unit": feature.unit}
        return {"kind": "days since 1970-01-01", "missing": missing_number, "interval": since}
    return {"kind": "number", "unit": feature.unit, "missing": missing_number}
