"""Predicts with an exported model.onnx. The loader needs onnxruntime and no other package.

    from onnx_loader import load
    model = load("folder-of-the-export")
    model.predict([{"age": 63, "sex": "1"}, {"age": 41, "sex": ""}])

Rows, predictions and `why` are those of loader.py. model.onnx alone predicts for every row, even if the contract does
not allow the row. Only this file returns None for such rows. Research software: not a medical device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

# The export replaces this import by the text of the imported file, so that a loader needs only onnxruntime.
from site_agent.desk.export.row_reader import RowReader


def load(folder: str | Path) -> Exported:
    """Load the model from a folder with model.json and model.onnx."""
    facts = json.loads((Path(folder) / "model.json").read_text(encoding="utf-8"))
    return Exported(facts, (Path(folder) / "model.onnx").read_bytes())


class Exported:
    """An exported model that predicts with onnxruntime."""

    def __init__(self, facts: dict[str, Any], content: bytes) -> None:
        self.facts, self._rows = facts, RowReader(facts)
        self._session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def predict(self, rows: list[dict[str, Any]]) -> list[Any]:
        """Return a prediction for each row, in order; None for a row that the contract does not allow."""
        return self._rows.answers(rows, self._scores)

    def why(self, rows: list[dict[str, Any]]) -> list[str]:
        """Return for each row why it has no prediction: columns, problem and values. Otherwise the text is empty."""
        return self._rows.why(rows)

    def _scores(self, read: list[list[float]]) -> list[Any]:
        scores: list[Any] = self._session.run(["scores"], {"values": np.array(read, dtype=np.float64)})[0].tolist()
        return scores
