"""Writes the folder of `site-agent export`, with which a colleague predicts elsewhere, without this program.

model.onnx has the whole model, from a patient's values to a probability. model.json describes its inputs, in order. No
file has code of a hospital. The rules:

* before a file is written, model.onnx must predict the same as the model for made-up rows. The allowed difference
  follows from the model and the number format: see `tolerance`;
* an export includes values learnt from the training rows: means and deviations, with some encodings quantiles, with
  federated-prior the thresholds of trees. So an export is for this hospital only, until its data protection officer
  allows more.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from protos.errors import ConfigurationError, OperatorError, UsageError, to_install
from site_agent.desk.applied import AppliedModel
from site_agent.desk.export.export_inputs import features_of, made_up_values, other_days
from site_agent.desk.export.scoring_module import ScoringModule
from site_agent.desk.result_files import write_result
from site_agent.desk.results.saved_model import SavedModel, latest_run, load_model
from site_agent.hospital import Hospital
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.data.columns import CategoricalFeature, DateFeature, Feature
from site_agent.trainer.data.image_formats import in_window
from site_agent.trainer.data.tables import Table
from site_agent.trainer.disk import Json

INPUT, OUTPUT = "values", "scores"
# The scores of an exact copy differ by a few units in the last place of float32 at 1, 2^-24. A network's own rounding
# can be larger. ROUNDINGS is by how much a chain of roundings moves a result more than one rounding of all its numbers:
# the square root of their number, so this allows 256 in a row.
_UNITS: Final = 16
ROUNDINGS: Final = 16
_FLOAT32: Final = 2.0**-24
_OPSET: Final = 18
_ROWS: Final = 256
_TRACED_ROWS: Final = 3
_SEED: Final = 1


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The names of the exported files, and the run of their model.

    `difference` is the largest difference between the export's predictions and the model's, in probability, or in
    standard deviations of a regression's target. `tolerance` is the largest one with which files are written.
    """

    files: tuple[str, ...]
    run: str
    difference: float
    tolerance: float


def export_model(hospital: Hospital, folder: Path, run: str | None) -> Exported:
    """Export the model of a run, by default the latest one, into a new or empty folder. Raise OperatorError if not."""
    _check_folder(folder)
    _check_packages()
    run = latest_run(hospital.state_path) if run is None else run
    model = load_model(hospital.state_path, run)
    prepare_arithmetic(hospital.training.threads)
    onnx, difference, allowed = checked_onnx(AppliedModel(model, run, hospital.training))
    files = {
        "model.onnx": onnx,
        "model.json": json.dumps(description_of(model, run), indent=1, allow_nan=False).encode(),
    }
    for file, content in files.items():
        write_result(folder / file, content)
    return Exported(files=tuple(files), run=run, difference=difference, tolerance=allowed)


def checked_onnx(applied: AppliedModel) -> tuple[bytes, float, float]:
    """Return model.onnx, and how much it differs and may differ for made-up rows. Raise OperatorError if it can't."""
    model = applied.model
    values = made_up_values(model.preprocessing.contract, model.profile, _ROWS, _SEED)
    features = encoded(model, values)
    predicted, allowed = applied.scores(features), tolerance(applied, features)
    content = onnx_bytes(scoring_module(applied), values[:_TRACED_ROWS])
    # Several numbers of rows are tested, because a graph can be right for one number of rows and wrong for another.
    found = np.concatenate([run_onnx(content, part) for part in (values[:1], values[1:8], values[8:])])
    difference = float(np.abs(predicted.reshape(found.shape) - found).max()) / _unit(model)
    if not difference <= allowed:
        raise OperatorError(
            what="The exported model would predict other numbers than the original model. The largest difference is "
            f"{difference:.2g}. At most {allowed:.2g} can be due to rounding.",
            consequence="Nothing was written, and nothing was sent.",
            remedy=(
                "Report to the developers of this program which network the plan names. Until they have corrected the "
                "export, predict with `site-agent predict`."
            ),
        )
    return content, difference, allowed


def tolerance(applied: AppliedModel, features: npt.NDArray[np.float32]) -> float:
    """Return the difference that rounding can explain. It follows from the model, and not from this computer."""
    return max(_UNITS * _FLOAT32, ROUNDINGS * applied.rounding(features, _SEED) / _unit(applied.model))


def scoring_module(applied: AppliedModel) -> ScoringModule:
    """Return the model as one module. It has its own copy of the network."""
    model = applied.model
    return ScoringModule(model, None if model.joined is not None else copy.deepcopy(applied.network)).eval()


def onnx_bytes(module: nn.Module, values: npt.NDArray[np.float64]) -> bytes:
    """Return a module as ONNX, for any number of rows such as `values`. Raise ConfigurationError if torch cannot."""
    import onnx

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                (torch.from_numpy(values),),
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                opset_version=_OPSET,
                dynamo=True,
                verbose=False,
            )
        assert program is not None
        content = bytes(program.model_proto.SerializeToString())
        onnx.checker.check_model(onnx.load_from_string(content))
        return content
    except Exception as cause:  # torch raises many kinds of errors for code that it cannot convert
        raise ConfigurationError(
            what=f"The model's network cannot be converted to ONNX: {type(cause).__name__}.",
            consequence="Nothing was exported, and nothing was sent.",
            remedy="Predict with `site-agent predict`. Tell the author of the network that torch cannot export it.",
        ) from cause


def run_onnx(content: bytes, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return onnxruntime's predictions for float64 (rows, inputs)."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return np.asarray(session.run([OUTPUT], {INPUT: values})[0], dtype=np.float64)


def encoded(model: SavedModel, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Return the model's encoded rows, float32 (rows, columns), for inputs (rows, inputs)."""
    contract = model.preprocessing.contract
    images = None if contract.image is None else in_window(values.astype(np.float32), contract.image)
    features = {} if contract.image is not None else features_of(contract, values)
    table = Table(contract=contract, rows=len(values), features=features, target=None, patients=None, images=images)
    return model.encode(table)


def _unit(model: SavedModel) -> float:
    scale = model.preprocessing.target_scale
    return 1.0 if scale is None else scale.deviation


def _check_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError as cause:
        raise ConfigurationError(
            what=f"An export needs the package {cause.name}, which is not installed.",
            consequence="Nothing was exported, and nothing was sent.",
            remedy=f"Install the extra `onnx`. {to_install('onnx')}",
        ) from cause


def _check_folder(folder: Path) -> None:
    if not folder.parent.is_dir() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise UsageError(
            what=f"Nothing can be exported to {folder.name or folder}: the folder is in use, or its parent folder does "
            "not exist.",
            consequence="Nothing was written, and nothing was sent.",
            remedy="With --output, name a folder that does not exist yet or is empty.",
        )


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
        return {"kind": "position among the codes", "codes": list(feature.codes), "missing": None if is_refused else -1}
    missing_number = None if is_refused else "NaN"
    if isinstance(feature, DateFeature):
        since = {"since": feature.since, "until": feature.until, "unit": feature.unit}
        return {"kind": "days since 1970-01-01", "missing": missing_number, "interval": since}
    return {"kind": "number", "unit": feature.unit, "missing": missing_number}
