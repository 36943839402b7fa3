"""Predicts with an exported model.onnx. It needs onnxruntime and nothing else.

    from onnx_loader import load

    model = load("folder-of-the-export")
    model.predict([{"age": 63, "sex": "1"}, {"age": 41, "sex": ""}])

Rows, answers and `why` are those of loader.py. model.onnx alone answers for every row, also for one that the contract
does not allow: this file is the one that abstains. Research software: not a medical device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

# The export replaces this line by the text of that file: a loader needs nothing beside it but onnxruntime.
from site_agent.desk.export.row_reader import RowReader


def load(folder: str | Path) -> Exported:
    """Load the model from a folder with model.json and model.onnx."""
    facts = json.loads((Path(folder) / "model.json").read_text(encoding="utf-8"))
    return Exported(facts, (Path(folder) / "model.onnx").read_bytes())


class Exported:
    """An exported model."""

    def __init__(self, facts: dict[str, Any], content: bytes) -> None:
        self.facts, self._rows = facts, RowReader(facts)
        self._session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def predict(self, rows: list[dict[str, Any]]) -> list[Any]:
        """Return an answer for each row, in order. It is None if the model must not predict."""
        return self._rows.answers(rows, self._scores)

    def why(self, rows: list[dict[str, Any]]) -> list[str]:
        """Return why each row has no answer: columns, problem and values; empty if it has an answer."""
        return self._rows.why(rows)

    def _scores(self, read: list[list[float]]) -> list[Any]:
        scores: list[Any] = self._session.run(["scores"], {"values": np.array(read, dtype=np.float64)})[0].tolist()
        return scores
