"""Writes the folder of `site-agent export`, which has a model that other programs can use.

model.json and model.safetensors have the model. loader.py reads them with PyTorch alone. On request there is also
model.onnx with onnx_loader.py. card.md and card.json describe the model's purpose and limits. If the network is the
hospital's own module, its file is included as own_network.py. The loader runs that file only if it is unchanged. The
rules:

* before a file is written, loader and ONNX must predict the same as the model for made-up rows;
* an export includes values learnt from the training rows: means and deviations, with some encodings quantiles, with a
  baseline the thresholds of trees. So an export is for this hospital only, until its data protection officer allows
  more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save as serialise_tensors

from protos.errors import OperatorError, UsageError
from protos.plan.architecture import NamedTensors
from site_agent.desk.applied import AppliedModel
from site_agent.desk.comparison.evaluation import Scores
from site_agent.desk.export import loader, row_reader
from site_agent.desk.export.graph import Graph
from site_agent.desk.export.onnx_inputs import features_of, made_up_values, other_day, other_days, terms_of
from site_agent.desk.export.onnx_model import onnx_bytes, run_onnx
from site_agent.desk.export.own_network import FILE, OwnNetwork, own_network
from site_agent.desk.export.rule_facts import image_facts, interval_facts, rule_facts
from site_agent.desk.export.written import written_down
from site_agent.desk.model_card import card_facts, card_markdown
from site_agent.desk.result_files import write_result
from site_agent.desk.results.saved_model import SavedModel, load_model
from site_agent.desk.use.model_in_use import ModelInUse, model_in_use
from site_agent.desk.use.recalibration import Recalibration, recalibration_of
from site_agent.hospital import Hospital
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.checkpoints import Json
from site_agent.trainer.data import cell_rules
from site_agent.trainer.data.cells import Spelling, date_rule, feature_rule, interval_rule
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.contract_columns import CategoricalFeature, DateFeature, Feature
from site_agent.trainer.data.image_files import in_window
from site_agent.trainer.data.tables import Table

# The scores of an exact copy may differ by this much: about 100 units in the last place of float32 at 1. For a network
# that amplifies rounding, it is ROUNDINGS times the effect of one rounding of all its numbers. Roundings of a long
# computation add up like the square root of their number, so this allows 256 in a row.
LARGEST_DIFFERENCE: Final = 1e-5
ROUNDINGS: Final = 16
_EXPORT: Final = Path(loader.__file__).parent
_IMPORTED: Final = "from site_agent.desk.export.row_reader import RowReader\n"
_FUTURE: Final = "from __future__ import annotations\n"
_OWN_IMPORTS: Final = re.compile(r"from site_agent\.[\w.]+ import \([^)]*\)\n")
_ROWS: Final = 256
_SEED: Final = 1


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The names of the exported files, their model, and remarks that a person should read.

    `loader_difference` and `onnx_difference` are the largest differences between a copy's predictions and the
    model's, in probability, or in standard deviations of a regression's target; None without ONNX. `tolerance` is the
    largest difference with which files are written.
    """

    files: tuple[str, ...]
    model: str
    notices: tuple[str, ...]
    loader_difference: float
    onnx_difference: float | None
    tolerance: float


def export_model(
    hospital: Hospital,
    folder: Path,
    run: str | None,
    *,
    has_onnx: bool,
    name: str | None = None,
    record: Callable[[str, str, str], None] | None = None,
) -> Exported:
    """Export a model of a run into a new or empty folder.

    Args:
        run: the run's name; None takes the run of the model in use.
        name: the name of one of the run's models, as in the report; None takes the model in use.
        record: receives the run, the model's name and the digest of its file, before the first file is written.

    Raises:
        OperatorError: there is no such model, it cannot be exported, its copies predict differently, or the folder is
            not empty.
    """
    _check_folder(folder)
    if run is None or name is None:
        used = model_in_use(hospital.state_path, run)
    else:
        model = load_model(hospital.state_path, run, name)
        used = ModelInUse(run=run, name=name, model=model, adoption=None, notices=())
    files, differences, tolerance = _checked_files(hospital, used, has_onnx=has_onnx)
    if record is not None:
        assert used.model.digest is not None  # it was read from a file
        record(used.run, used.name, used.model.digest)
    for file, content in files.items():
        write_result(folder / file, content)
    return Exported(
        files=tuple(files),
        model=used.title,
        notices=used.notices,
        loader_difference=differences[0],
        onnx_difference=differences[1] if has_onnx else None,
        tolerance=tolerance,
    )


def _checked_files(
    hospital: Hospital, used: ModelInUse, *, has_onnx: bool
) -> tuple[dict[str, bytes], list[float], float]:
    """Return the exported files, the largest difference of each copy's predictions, and the allowed difference.

    Raises:
        OperatorError: the model cannot be exported, or a copy predicts differently.
    """
    model, changed = used.model, recalibration_of(hospital.state_path, used.run, used.name)
    prepare_arithmetic(hospital.training.threads)
    graph, facts = written_down(model, changed), card_facts(hospital, used)
    applied = AppliedModel(model, used.run, hospital.training)
    own = _own_network(applied, hospital.training.own_module)
    values = made_up_values(model.preprocessing.contract, model.profile, _ROWS, _SEED)
    features = encoded(model, values)
    said = _recalibrated(applied.scores(features), changed)
    rounding = applied.rounding(features, lambda scores: _recalibrated(scores, changed), _SEED)
    tolerance = max(LARGEST_DIFFERENCE, ROUNDINGS * rounding / _unit(model))
    description = description_of(model, graph, used.run, own)
    copy = loader_of(description, graph, own)
    differences = [_difference(model, said, copy.scores(torch.from_numpy(values)).numpy())]
    files = {
        "model.json": json.dumps(description, indent=1, allow_nan=False).encode(),
        "model.safetensors": serialise_tensors(dict(graph.constants)),
        "loader.py": standalone("loader"),
        "card.md": card_markdown(facts).encode(),
        "card.json": json.dumps(facts, indent=2, allow_nan=False).encode(),
        **({} if own is None else {FILE: own.source}),
    }
    if has_onnx:
        files["onnx_loader.py"] = standalone("onnx_loader")
        files["model.onnx"] = onnx_bytes(graph, values.shape[1], model.outputs, own)
        # Several numbers of rows are tested, because an ONNX graph can be right for one number of rows and wrong for
        # another number.
        parts = [run_onnx(files["model.onnx"], part) for part in (values[:1], values[1:8], values[8:])]
        differences.append(_difference(model, said, np.concatenate(parts)))
    _check_differences(differences, tolerance)
    return files, differences, tolerance


def _check_differences(differences: list[float], tolerance: float) -> None:
    if max(differences) > tolerance:
        raise OperatorError(
            what="The exported model would predict other numbers than the original model. The largest difference "
            f"is {max(differences):.2g}. At most {tolerance:.2g} can be due to rounding.",
            consequence="Nothing was written, and nothing was sent.",
            remedy=(
                "Report to the developers of this program which network the plan names. Until they have corrected the "
                "export, predict with `site-agent predict`."
            ),
        )


def standalone(name: str) -> bytes:
    """Return the text of a loader. It needs no other file, because it includes the rules for cells and rows."""
    text = (_EXPORT / f"{name}.py").read_text()
    parts = [Path(file).read_text().partition(_FUTURE)[2] for file in (cell_rules.__file__, row_reader.__file__)]
    rules = _OWN_IMPORTS.sub("", "\n\n".join(part.strip() for part in parts))
    before, found, after = text.partition(_IMPORTED)
    assert found, "a loader imports the rules for cells in one line"
    return "".join([before, rules, "\n", after]).encode()


def loader_of(description: Mapping[str, Json], graph: Graph, own: OwnNetwork | None) -> loader.Exported:
    """Return the exported model in the same way as its loader builds it from the files."""
    facts = json.loads(json.dumps(description, allow_nan=False))
    tensors = {name: torch.from_numpy(array.copy()) for name, array in graph.constants.items()}
    module = None if own is None else loader.module_of(facts["module"], own.source, tensors)
    return loader.Exported(facts, tensors, module)


def _own_network(applied: AppliedModel, path: str | None) -> OwnNetwork | None:
    model = applied.model
    if model.own is not None or not isinstance(model.plan.architecture, NamedTensors):
        return None
    return own_network(path, applied.network, len(model.columns), model.outputs)


def answers(
    applied: AppliedModel, values: npt.NDArray[np.float64], changed: Recalibration | None
) -> npt.NDArray[np.float64]:
    """Return the original model's predictions for inputs (rows, inputs): float64 (rows,) or (rows, classes)."""
    return _recalibrated(applied.scores(encoded(applied.model, values)), changed)


def _recalibrated(scores: Scores, changed: Recalibration | None) -> Scores:
    return scores if changed is None else changed.apply(scores)


def encoded(model: SavedModel, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Return the model's encoded rows, float32 (rows, columns), for inputs (rows, inputs)."""
    contract = model.preprocessing.contract
    images = None if contract.image is None else in_window(values.astype(np.float32), contract.image)
    features = {} if contract.image is not None else features_of(contract, values)
    table = Table(
        contract=contract,
        rows=len(values),
        features=features,
        target=None,
        patients=None,
        images=images,
        terms=terms_of(contract, values),
    )
    return model.encode(table)


def description_of(model: SavedModel, graph: Graph, run: str, own: OwnNetwork | None = None) -> dict[str, Json]:
    """Return the content of the file model.json, which describes the model's inputs, computation and outputs."""
    contract = model.preprocessing.contract
    target = contract.target
    return {
        "format": "global-layers export 3",
        "run": run,
        "plan_digest": model.plan.digest.hex(),
        "task": target.task,
        "classes": list(target.classes),
        "outcome": {"unit": target.unit if target.task == "regression" else None, "answers": target.answers},
        "decimal": contract.format.decimal,
        "features": _features(model),
        "days": [
            {"name": one.name, "required": True, "rule": rule_facts(date_rule(one, _spelling(contract)))}
            for one in other_days(contract)
        ],
        "terms": [
            {"name": one.name, "required": one.required, "rule": rule_facts(one.rule(contract.missing_markers))}
            for one in contract.terms
        ],
        "image": None if contract.image is None else image_facts(contract.image),
        "module": None if own is None else own.facts,
        "operations": [
            {"name": one.name, "inputs": list(one.inputs), "output": one.output, "attributes": _plain(one.attributes)}
            for one in graph.operations
        ],
        "result": graph.result,
    }


def _features(model: SavedModel) -> list[Json]:
    """Return for each feature the rule for its cells, and the limits outside which a row has no prediction."""
    contract = model.preprocessing.contract
    limits = {one.name: [one.low, one.high] for one in model.profile.columns} if model.profile else {}
    return [
        {
            "name": feature.name,
            "unit": None if isinstance(feature, CategoricalFeature) else feature.unit,
            "required": feature.required,
            "limits": limits.get(feature.name, [None, None]),
            "rule": rule_facts(
                date_rule(feature, _spelling(contract))
                if isinstance(feature, DateFeature)
                else feature_rule(feature, _spelling(contract))
            ),
            "interval": _interval(contract, feature),
        }
        for feature in contract.features
    ]


def _interval(contract: Contract, feature: Feature) -> Json:
    """Describe how a date is converted to the number of days or years since or until another day."""
    if not isinstance(feature, DateFeature):
        return None
    column, day = other_day(contract, feature)
    return {**interval_facts(interval_rule(feature)), "other": None if column is None else feature.other, "day": day}


def _spelling(contract: Contract) -> Spelling:
    return Spelling(contract.format.decimal, contract.missing_markers)


def _plain(attributes: Mapping[str, object]) -> dict[str, Json]:
    return {key: list(value) if isinstance(value, tuple | list) else value for key, value in attributes.items()}  # type: ignore[misc]  # numbers, words and lists of numbers


def _difference(model: SavedModel, said: npt.NDArray[np.float64], found: npt.NDArray[np.float64]) -> float:
    return float(np.abs(said.reshape(found.shape) - found).max()) / _unit(model)


def _unit(model: SavedModel) -> float:
    scale = model.preprocessing.target_scale
    return 1.0 if scale is None else scale.deviation


def _check_folder(folder: Path) -> None:
    if not folder.parent.is_dir() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise UsageError(
            what=f"Nothing can be exported to {folder.name or folder}: the folder is in use, or its parent folder does "
            "not exist.",
            consequence="Nothing was written, and nothing was sent.",
            remedy="With --output, name a folder that does not exist yet or is empty.",
        )
