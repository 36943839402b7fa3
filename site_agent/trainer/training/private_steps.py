"""What a site's trainer sums in one private round: one clipped gradient, or several local steps with noise in each.

The mechanism is in protos/plan/private_training.py. The rules:

* under shared noise the sum is exact, and the gate adds this site's share of the noise;
* under local noise no step reads a sum before its whole noise is in it, and what leaves is made of noisy sums alone;
* samples of patients and local noise are from the operating system's randomness, never from a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from protos.plan.private_training import PrivateTraining
from protos.privacy.discrete_gaussian import RandomBytes, discrete_gaussian
from site_agent.trainer.training.private_gradient import Layer, clipped_gradients, drawn_rows

Float64: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PrivateRows:
    """A site's training rows.

    Attributes:
        features: float32 of shape (rows, inputs).
        outcomes: 0 or 1, float64 of shape (rows,).
        patients: int64 of shape (rows,), equal for rows of one patient; None where each row counts as a patient.
        random_bytes: the operating system's outside of tests.
    """

    features: npt.NDArray[np.float32]
    outcomes: Float64
    patients: Integers | None
    random_bytes: RandomBytes


def private_sums(training: PrivateTraining, arrays: Sequence[Float64], rows: PrivateRows) -> tuple[int, ...]:
    """Return the integers of a round, in the order of `training.names`.

    Args:
        training: the plan's.
        arrays: weight and bias of each layer of the network, the shared layers first.
        rows: of this site.
    """
    if not training.is_local:
        return _clipped_sum(training, arrays, rows)
    shared = arrays[: len(training.tensors)]
    ends = np.cumsum([array.size for array in shared])
    start, moved = np.concatenate([array.ravel() for array in shared]), np.zeros(ends[-1], np.int64)
    followed = moved  # the shared model of pFedMe; the received values for every other method
    for made in range(training.steps * training.inner):
        parts = np.split(start + training.local_change(moved.astype(np.float64)), ends[:-1])
        here = [part.reshape(array.shape) for part, array in zip(parts, shared, strict=True)]
        sums = np.array(_clipped_sum(training, [*here, *arrays[len(shared) :]], rows), np.int64)
        noise = discrete_gaussian(len(sums), training.share_variance, rows.random_bytes)
        # A proximal term returns a part of the way. It reads noisy values alone.
        moved = moved + _part(followed - moved, training.pull) + sums + noise
        if (made + 1) % training.inner == 0:
            followed = followed + _part(moved - followed, training.follow)
    return tuple((followed if training.follow else moved).tolist())


def _part(way: Integers, share: float) -> Integers:
    return np.asarray(np.rint(way * share).astype(np.int64))


def _clipped_sum(training: PrivateTraining, arrays: Sequence[Float64], rows: PrivateRows) -> tuple[int, ...]:
    """The sum of clipped gradients at these values, of all patients or of a sample that is drawn for it."""
    layers = [Layer(weight, bias) for weight, bias in zip(arrays[::2], arrays[1::2], strict=True)]
    features, outcomes, patients, promise = rows.features, rows.outcomes, rows.patients, training.promise
    if promise.sampling is not None:
        kept = drawn_rows(len(outcomes), patients, promise.sampling, rows.random_bytes)
        features, outcomes, patients = features[kept], outcomes[kept], None if patients is None else patients[kept]
    shared = len(training.tensors) // 2
    return clipped_gradients(layers, promise.clip, features, outcomes, patients, shared=shared)
