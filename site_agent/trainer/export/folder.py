"""`site-agent export`: a folder with the model for use elsewhere, written only when it answers as the model does.

model.json and model.safetensors hold the model, loader.py reads them with PyTorch alone, model.onnx (on request) does
without, card.md and card.json say what it is and is not. The rules:

* loader and ONNX are compared with the model itself on made-up rows before a file is written;
* what the model learnt of the training rows goes with it: means and deviations, with some encodings quantiles, with an
  expert the thresholds of trees. So an export is for this hospital, until its data protection officer says more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save as serialise_tensors

from protos.errors import OperatorError, UsageError
from site_agent.config import Hospital
from site_agent.trainer.applied import AppliedModel
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.card import card_facts, card_markdown
from site_agent.trainer.checkpoints import Json
from site_agent.trainer.data.contract import CategoricalFeature
from site_agent.trainer.data.tables import Table
from site_agent.trainer.export import loader
from site_agent.trainer.export.graph import Graph
from site_agent.trainer.export.onnx_model import onnx_bytes, run_onnx
from site_agent.trainer.export.written import written_down
from site_agent.trainer.files import write_whole
from site_agent.trainer.saved_model import SavedModel, latest_run, load_model
from site_agent.trainer.use.recalibration import Recalibration, recalibration_of

LARGEST_DIFFERENCE: Final = 1e-5
_ROWS: Final = 256
_SEED: Final = 1


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, and by how much loader and ONNX at most differ from the model, None without ONNX.

    A difference is in probability, or in standard deviations of a regression's target.
    """

    files: tuple[str, ...]
    loader_difference: float
    onnx_difference: float | None


def export_model(hospital: Hospital, folder: Path, run: str | None, *, has_onnx: bool) -> Exported:
    """Write a run's model into a folder that is new or empty.

    Raises:
        OperatorError: there is no such model, it cannot be written down, its copies answer otherwise, or the folder is
            in use.
    """
    _check_folder(folder)
    name = latest_run(hospital.state_path) if run is None else run
    model, changed = load_model(hospital.state_path, name), recalibration_of(hospital.state_path, name)
    prepare_arithmetic(hospital.training.threads)
    graph, facts = written_down(model, changed), card_facts(hospital, name, model)
    values = made_up_values(model)
    said = answers(AppliedModel(model, name, hospital.training), values, changed)
    description = description_of(model, graph, name)
    copy = loader.Exported(json.loads(json.dumps(description)), _as_torch(graph))
    differences = [_difference(model, said, copy.scores(torch.from_numpy(values)).numpy())]
    files = {
        "model.json": json.dumps(description, indent=1, allow_nan=False).encode(),
        "model.safetensors": serialise_tensors(dict(graph.constants)),
        "loader.py": Path(loader.__file__).read_bytes(),
        "card.md": card_markdown(facts).encode(),
        "card.json": json.dumps(facts, indent=2, allow_nan=False).encode(),
    }
    if has_onnx:
        files["model.onnx"] = onnx_bytes(graph, values.shape[1], model.outputs)
        differences.append(_difference(model, said, run_onnx(files["model.onnx"], values)))
    if max(differences) > LARGEST_DIFFERENCE:
        raise _differs(max(differences))
    for file, content in files.items():
        write_whole(folder / file, content)
    onnx = differences[1] if has_onnx else None
    return Exported(files=tuple(files), loader_difference=differences[0], onnx_difference=onnx)


def made_up_values(model: SavedModel, rows: int = _ROWS) -> npt.NDArray[np.float64]:
    """Rows within the limits of the training rows, some values missing where that is allowed: (rows, features)."""
    generator, columns = np.random.default_rng(_SEED), []
    limits = {one.name: (one.low, one.high) for one in model.profile.columns} if model.profile else {}
    for feature in model.preprocessing.contract.features:
        if isinstance(feature, CategoricalFeature):
            first = 0 if feature.missing == "refuse" else -1
            columns.append(generator.integers(first, len(feature.codes), rows).astype(np.float64))
            continue
        low, high = limits.get(feature.name, feature.range or (-1.0, 1.0))
        drawn = generator.uniform(0.0 if low is None else low, 1.0 if high is None else high, rows)
        is_missing = (generator.random(rows) < 0.1) & (feature.missing != "refuse")
        columns.append(np.where(is_missing, np.nan, drawn))
    return np.stack(columns, axis=1)


def answers(
    applied: AppliedModel, values: npt.NDArray[np.float64], changed: Recalibration | None
) -> npt.NDArray[np.float64]:
    """What `predict` says of such rows: (rows,) or (rows, classes)."""
    contract = applied.model.preprocessing.contract
    features = {feature.name: values[:, place] for place, feature in enumerate(contract.features)}
    table = Table(contract=contract, rows=len(values), features=features, target=None, patients=None)
    scores = applied.scores(applied.model.preprocessing.encode(table))
    return scores if changed is None else changed.apply(scores)


def description_of(model: SavedModel, graph: Graph, run: str) -> dict[str, Json]:
    """What model.json says: which cells go in, what is computed, what comes out."""
    contract = model.preprocessing.contract
    target = contract.target
    return {
        "format": "global-layers export 1",
        "run": run,
        "plan_digest": model.plan.digest.hex(),
        "task": target.task,
        "classes": list(target.classes),
        "features": _features(model),
        "operations": [
            {"name": one.name, "inputs": list(one.inputs), "output": one.output, "attributes": _plain(one.attributes)}
            for one in graph.operations
        ],
        "result": graph.result,
    }


def _features(model: SavedModel) -> list[Json]:
    contract = model.preprocessing.contract
    limits = {one.name: (one.low, one.high) for one in model.profile.columns} if model.profile else {}
    found: list[Json] = []
    for feature in contract.features:
        is_code = isinstance(feature, CategoricalFeature)
        low, high = limits.get(feature.name, (None, None))
        if not isinstance(feature, CategoricalFeature) and feature.range is not None:
            low = feature.range[0] if low is None else max(low, feature.range[0])
            high = feature.range[1] if high is None else min(high, feature.range[1])
        found.append(
            {
                "name": feature.name,
                "kind": feature.type,
                "unit": None if isinstance(feature, CategoricalFeature) else feature.unit,
                "codes": list(feature.codes) if isinstance(feature, CategoricalFeature) else None,
                "missing": sorted({"", *contract.missing_markers, *feature.missing_markers}),
                "required": getattr(feature, "required", True),
                "refuses_missing": feature.missing == "refuse",
                "low": None if is_code else low,
                "high": None if is_code else high,
            }
        )
    return found


def _plain(attributes: Mapping[str, object]) -> dict[str, Json]:
    return {key: list(value) if isinstance(value, tuple | list) else value for key, value in attributes.items()}  # type: ignore[misc]  # numbers, words and lists of numbers


def _as_torch(graph: Graph) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in graph.constants.items()}


def _difference(model: SavedModel, said: npt.NDArray[np.float64], found: npt.NDArray[np.float64]) -> float:
    scale = model.preprocessing.target_scale
    widest = float(np.abs(said.reshape(found.shape) - found).max())
    return widest if scale is None else widest / scale.deviation


def _check_folder(folder: Path) -> None:
    if not folder.parent.is_dir() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise UsageError(
            what=f"Nothing can be exported to {folder.name or folder}: it is in use, or lies in no folder that exists.",
            consequence="Nothing was written, and nothing left this site.",
            remedy="Name a new or empty folder with --output.",
        )


def _differs(difference: float) -> OperatorError:
    return OperatorError(
        what=f"The exported model would answer otherwise than the model itself, by up to {difference:.2g}.",
        consequence="Nothing was written, and nothing left this site.",
        remedy="Tell the project which network the plan names; until then use `site-agent predict`.",
    )
