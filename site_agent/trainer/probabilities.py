"""Converts a model's outputs to probabilities of classes and pixels, and computes the loss of each row.

Baselines, reports and predictions use these two functions, so they agree to the bit.
"""

from __future__ import annotations

from typing import Final, assert_never

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data.contract import Task

_TINIEST: Final = float(np.finfo(np.float64).eps)


def probabilities(task: Task, outputs: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Return the probabilities, float64, that follow from a network's outputs. Very large outputs cause no overflow.

    Outputs are logits of shape (rows,) or (rows, 1) for binary, (rows, classes) for multi-class, (rows, pixels) for
    masks, or a regression's numbers (rows,) or (rows, 1), which are only flattened. The result has shape (rows,),
    (rows, classes) for multi-class, or (rows, pixels) for masks.
    """
    values = outputs.astype(np.float64)
    match task:
        case "binary" | "segmentation":
            logits = values if task == "segmentation" else values.reshape(len(values))
            # The exponent is never positive, so nothing overflows.
            small = np.exp(-np.abs(logits))
            return np.asarray(np.where(logits >= 0, 1.0, small) / (1.0 + small))
        case "multi-class":
            raised = np.exp(values - values.max(axis=1, keepdims=True))
            return np.asarray(raised / raised.sum(axis=1, keepdims=True))
        case "regression":
            return values.reshape(len(values))
        case _:
            assert_never(task)


def log_loss_of_rows(targets: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return minus the logarithm of the probability of the observed class, shape (rows,), in nats.

    As in scikit-learn, probabilities are clipped 2.2e-16 away from 0 and 1. So one row with a certain and wrong
    prediction costs 36 nats.
    """
    happened = (
        np.where(targets == 1, scores, 1.0 - scores) if scores.ndim == 1 else scores[np.arange(len(scores)), targets]
    )
    return np.asarray(-np.log(happened.clip(_TINIEST, 1.0 - _TINIEST)))
