"""One PyTorch module from a patient's values to the saved model's answer. An export is this module in ONNX.

It computes the encoding, the network or the joined model, and the outcome's unit. The network is
the trained module itself, so no network is described a second time. Inputs: float64 of shape (rows, inputs), see
export_inputs.py. Result: float64 of shape (rows, 1) or (rows, classes).
"""

from __future__ import annotations

from typing import Final, assert_never

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from site_agent.desk.export.export_inputs import other_day
from site_agent.desk.results.joined_model import JoinedModel
from site_agent.desk.results.saved_model import SavedModel
from site_agent.trainer.data.cells import interval_rule
from site_agent.trainer.data.columns import CategoricalFeature, DateFeature, Feature
from site_agent.trainer.data.contract import Contract, Task
from site_agent.trainer.data.preprocessing import (
    Encoding,
    NumericEncoding,
    OneHotEncoding,
    OrdinalEncoding,
    Preprocessing,
    encode,
)
from site_agent.trainer.fitted_models import DISTANCE, Forest, Lines
from site_agent.trainer.prior.concept_columns import ConceptEncoding, MappedCode, MappedNumber

_FURTHEST: Final = 30.0  # as in joined_model.py


class _Part(nn.Module):
    """A part of the computation whose constants are buffers: torch's exporter rounds numbers in code to float32.

    A rounded mean can move a value across a threshold of a tree. Only numbers that float32 has exactly are in code.
    """

    def constant(self, name: str, values: npt.ArrayLike, dtype: type[np.generic] = np.float64) -> None:
        self.register_buffer(name, torch.from_numpy(np.array(values, dtype=dtype)))


class ScoringModule(_Part):
    """A whole saved model as one module."""

    scale: Tensor
    middle: Tensor

    def __init__(self, model: SavedModel, network: nn.Module | None) -> None:
        super().__init__()
        preprocessing = model.preprocessing
        self._task, scale = preprocessing.contract.target.task, preprocessing.target_scale
        self._has_scale = scale is not None
        self.constant("scale", 1.0 if scale is None else scale.deviation)
        self.constant("middle", 0.0 if scale is None else scale.mean)
        self.encoding = _Encoding(preprocessing)
        self.concepts = None if model.concepts is None else _Concepts(model.concepts, preprocessing.contract)
        self.joined = None if model.joined is None else _Joined(model.joined)
        self.network, self._places = network, _places(model)

    def forward(self, values: Tensor) -> Tensor:
        """Return the scores, float64 (rows, 1) or (rows, classes), of values, float64 (rows, inputs)."""
        scores = self._scores(values, self.encoding(values))
        if self._has_scale:
            scores = scores * self.scale + self.middle
        return scores

    def _scores(self, values: Tensor, own: Tensor) -> Tensor:
        shared = [] if self.concepts is None else [self.concepts(values)]
        if self.joined is not None:
            return _scores(self._task, self.joined(own, *shared))
        assert self.network is not None
        if self._places is not None:
            own = torch.cat([own, *shared, own[:, :1] * 0.0], dim=1)[:, self._places]
        return _scores(self._task, self.network(own).double())


def _places(model: SavedModel) -> list[int] | None:
    """Return the positions of the network's columns among own columns, columns of concepts, and a column of zeros.

    None if the network reads the own columns as they are. A column that this site lacks is 0.
    """
    own = model.preprocessing.columns
    if model.read_places is not None:
        return list(model.read_places)
    if model.columns == own:
        return None
    places = {name: place for place, name in enumerate(own)}
    return [places.get(name, len(own)) for name in model.columns]


def _scores(task: Task, outputs: Tensor) -> Tensor:
    match task:
        case "binary":
            return outputs.sigmoid()
        case "multi-class":
            return outputs.softmax(1)
        case "regression":
            return outputs
        case _:
            assert_never(task)


class _Encoding(nn.Module):
    """`Preprocessing.encode`: float32 (rows, columns)."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        contract, self._image = preprocessing.contract, preprocessing.contract.image
        encoded = zip(contract.features, preprocessing.encodings, strict=True)
        parts: list[nn.Module] = [
            nn.Sequential(_Value(contract, place), _feature(feature, encoding))
            for place, (feature, encoding) in enumerate(encoded)
        ]
        if contract.image is not None:
            parts.append(_Pixels(preprocessing))
        self.parts = nn.ModuleList(parts)

    def forward(self, values: Tensor) -> Tensor:
        return torch.cat([part(values).float() for part in self.parts], dim=1)


class _Value(nn.Module):
    """A feature's value, float64 (rows, 1). A date becomes its interval, see `cells.interval_of`."""

    def __init__(self, contract: Contract, place: int) -> None:
        super().__init__()
        feature = contract.features[place]
        self._place, self._rule = place, interval_rule(feature) if isinstance(feature, DateFeature) else None
        self._other, self._day = other_day(contract, feature) if isinstance(feature, DateFeature) else (None, 0.0)

    def forward(self, values: Tensor) -> Tensor:
        own = values[:, self._place : self._place + 1]
        if self._rule is None:
            return own
        other = self._day if self._other is None else values[:, self._other : self._other + 1]
        length: Tensor = self._rule.length(own, other)
        return length


def _feature(feature: Feature, encoding: Encoding) -> nn.Module:
    match encoding:
        case OrdinalEncoding() | OneHotEncoding():
            assert isinstance(feature, CategoricalFeature)
            positions = np.arange(len(feature.codes), dtype=np.float64)
            return _Coded(positions, encode(feature, encoding, np.append(positions, -1.0)))
        case NumericEncoding():
            return _Measured(encoding, has_flag=feature.missing.endswith("-and-flag"))
        case _:
            assert_never(encoding)


class _Coded(_Part):
    """A code's position to a row of a table. Unknown codes get the table's last row."""

    positions: Tensor
    table: Tensor

    def __init__(self, positions: npt.ArrayLike, table: npt.ArrayLike) -> None:
        super().__init__()
        self.constant("positions", positions)
        self.constant("table", table)

    def forward(self, value: Tensor) -> Tensor:
        chosen = (value == self.positions).double()
        return torch.cat([chosen, 1.0 - chosen.sum(1, keepdim=True)], dim=1) @ self.table


class _Measured(_Part):
    """A number as its z-score; if declared, with a flag if it is missing."""

    fill: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, encoding: NumericEncoding, *, has_flag: bool) -> None:
        super().__init__()
        self._has_fill, self._has_flag = encoding.fill is not None, has_flag
        self.constant("fill", encoding.fill or 0.0)
        self.constant("mean", encoding.scale.mean)
        self.constant("deviation", encoding.scale.deviation)

    def forward(self, value: Tensor) -> Tensor:
        absent = value.isnan()
        columns = ((torch.where(absent, self.fill, value) if self._has_fill else value) - self.mean) / self.deviation
        return torch.cat([columns, absent.double()], dim=1) if self._has_flag else columns


class _Pixels(_Part):
    """A file's intensities to standardised pixels. See `image_files.in_window`."""

    lowest: Tensor
    highest: Tensor
    centres: Tensor
    widths: Tensor

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        column, scales = preprocessing.contract.image, preprocessing.pixel_scales
        assert column is not None
        (low, high), each = column.limits, column.image.height * column.image.width
        self.constant("lowest", low)
        self.constant("highest", high)
        # First (value - low) / (high - low). Then this number minus the mean of its channel, divided by the deviation.
        self.constant("centres", np.repeat([low + scale.mean * (high - low) for scale in scales], each))
        self.constant("widths", np.repeat([scale.deviation * (high - low) for scale in scales], each))

    def forward(self, intensities: Tensor) -> Tensor:
        return (torch.minimum(torch.maximum(intensities, self.lowest), self.highest) - self.centres) / self.widths


class _Concepts(nn.Module):
    """`ConceptEncoding.encode`: float32 (rows, columns)."""

    def __init__(self, concepts: ConceptEncoding, contract: Contract) -> None:
        super().__init__()
        self.parts = nn.ModuleList([_concept(concepts, contract, place) for place in range(len(concepts.names))])

    def forward(self, values: Tensor) -> Tensor:
        return torch.cat([part(values) for part in self.parts], dim=1).float()


def _concept(concepts: ConceptEncoding, contract: Contract, place: int) -> nn.Module:
    """Return the computation of one standardised concept, float64 (rows, 1). A missing value is 0."""
    one, mean, deviation = concepts.mapped[place], concepts.means[place], concepts.deviations[place]
    if one is None or not concepts.used[place]:
        return _Zero()
    number = [feature.name for feature in contract.features].index(one.feature)
    feature, value = contract.features[number], _Value(contract, number)
    match one:
        case MappedNumber():
            return nn.Sequential(value, _Number(one, mean, deviation))
        case MappedCode():
            assert isinstance(feature, CategoricalFeature)
            positions = np.arange(len(feature.codes), dtype=np.float64)
            scores = np.where(np.isin(positions, one.ones), 1.0 - mean, -mean) / deviation
            known = np.where(np.isin(positions, one.known), scores, 0.0)
            return nn.Sequential(value, _Coded(positions, np.append(known, 0.0)[:, None]))
        case _:
            assert_never(one)


class _Zero(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return torch.zeros_like(values[:, :1])


class _Number(_Part):
    factor: Tensor
    start: Tensor
    width: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, one: MappedNumber, mean: float, deviation: float) -> None:
        super().__init__()
        self.constant("factor", one.factor)
        self.constant("start", one.offset - one.low)
        self.constant("width", one.high - one.low)
        self.constant("mean", mean)
        self.constant("deviation", deviation)

    def forward(self, value: Tensor) -> Tensor:
        scaled = (value * self.factor + self.start) / self.width
        return torch.where(value.isnan(), 0.0, (scaled.clamp(0.0, 1.0) - self.mean) / self.deviation)


class _Lines(_Part):
    slopes: Tensor
    starts: Tensor

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self.constant("slopes", lines.slopes.T)
        self.constant("starts", lines.starts)

    def forward(self, columns: Tensor) -> Tensor:
        return columns.double() @ self.slopes + self.starts


class _Forest(_Part):
    """The mean answer of a forest's trees, float64 (rows, answers). A leaf is its own child."""

    roots: Tensor
    columns: Tensor
    branches: Tensor
    thresholds: Tensor
    values: Tensor

    def __init__(self, forest: Forest) -> None:
        super().__init__()
        self._depth, level = 0, forest.roots
        while len(level := level[np.isfinite(forest.thresholds[level])]):
            level, self._depth = forest.children[level].ravel(), self._depth + 1
        self.constant("roots", forest.roots, np.int64)
        self.constant("columns", forest.columns, np.int64)
        self.constant("branches", forest.children.ravel(), np.int64)
        # A float32 value is above a float64 threshold exactly if it is above the largest float32 that is not above the
        # threshold. A comparison in float64 is not safe: ONNX tools remove a conversion to float32 and back.
        thresholds = forest.thresholds.astype(np.float32)
        above = thresholds.astype(np.float64) > forest.thresholds
        thresholds[above] = np.nextafter(thresholds[above], np.float32(-np.inf))
        self.constant("thresholds", thresholds, np.float32)
        self.constant("values", forest.values)

    def forward(self, features: Tensor) -> Tensor:
        at = self.roots.expand(len(features), -1)
        for _ in range(self._depth):
            above = features.gather(1, self.columns[at]) > self.thresholds[at]
            at = self.branches[2 * at + above.long()]
        return self.values[at].mean(1)


class _Joined(_Part):
    """`JoinedModel.outputs`: the site's regression, its forest and the others' score, each times its weight."""

    weights: Tensor
    distance: Tensor

    def __init__(self, joined: JoinedModel) -> None:
        super().__init__()
        self._task = joined.task
        self.constant("weights", joined.weights)
        self.constant("distance", DISTANCE)
        self.own, self.forest, self.others = _Lines(joined.own), _Forest(joined.forest), _Lines(joined.others)

    def forward(self, own: Tensor, concepts: Tensor) -> Tensor:
        line, grown, others = self.own(own), self._bounded(self.forest(own)), self.others(concepts)
        if self._task == "multi-class":
            line, shares = line.log_softmax(1), others.clamp(-_FURTHEST, _FURTHEST).sigmoid()
            others = (shares / shares.sum(1, keepdim=True)).log()
        outputs: Tensor = self.weights[0] * line + self.weights[1] * grown + self.weights[2] * others
        return outputs

    def _bounded(self, shares: Tensor) -> Tensor:
        if self._task == "binary":
            return ((shares + self.distance) / (1.0 - shares + self.distance)).log()
        return ((shares + self.distance) / (1.0 + shares.shape[1] * self.distance)).log()
