"""Computes the sums of the trainer in one private round: of one clipped gradient, or of several local steps with noise.

The mechanism is in protos/plan/private_training.py. The rules:

* under shared noise the sum is exact, and the gate adds this site's share of the noise;
* private layers take steps too under some methods. Their sums have the whole noise before they leave this function;
* under local noise no step reads a sum before its whole noise is added. Only sums with noise are sent;
* samples of patients and local noise are from the operating system's randomness, never from a seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protos.plan.noisy_results import local_change
from protos.plan.private_training import PrivateTraining
from protos.privacy.discrete_gaussian import RandomBytes, discrete_gaussian
from site_agent.trainer.prior.private_terms import Float64, Integers
from site_agent.trainer.training.private_gradient import Layer, PrivateRows, clipped_gradients, drawn_rows


def private_sums(
    training: PrivateTraining, arrays: Sequence[Float64], rows: PrivateRows, random_bytes: RandomBytes
) -> tuple[int, ...]:
    """Return a private round's integers: the sums of `training.names` in order, then the noisy sums of private layers.

    `arrays` are weight and bias of each layer, in order. `random_bytes` are the operating system's outside of tests.
    """
    is_own = training.is_own
    if not training.is_local:
        exact = _clipped_sum(training, arrays, rows, random_bytes)
        noise = discrete_gaussian(training.own_numbers, training.own_variance, random_bytes)
        return (*exact[~is_own].tolist(), *(exact[is_own] + noise).tolist())
    trained = arrays[: training.trained]
    ends, pull = np.cumsum([array.size for array in trained]), np.where(is_own, 0.0, training.pull)
    start, moved = np.concatenate([array.ravel() for array in trained]), np.zeros(ends[-1], np.int64)
    followed = moved  # the shared model for pFedMe; the received values for every other method
    for made in range(training.steps * training.inner):
        parts = np.split(start + local_change(training, moved.astype(np.float64)), ends[:-1])
        here = [part.reshape(array.shape) for part, array in zip(parts, trained, strict=True)]
        sums = _clipped_sum(training, [*here, *arrays[len(trained) :]], rows, random_bytes)
        noise = discrete_gaussian(len(sums), training.share_variance, random_bytes)
        # The proximal term moves the values back a part of the way. It reads only values with noise.
        moved = moved + _part(followed - moved, pull) + sums + noise
        if (made + 1) % training.inner == 0:
            followed = followed + _part(moved - followed, training.follow)
    # The gate refuses larger numbers. A site's own patients must not decide that.
    found = np.clip(followed if training.follow else moved, -_bounds(training), _bounds(training))
    return (*found[~is_own].tolist(), *found[is_own].tolist())


def _bounds(training: PrivateTraining) -> Integers:
    return np.where(training.is_own, training.own_bound, training.bound)


def _part(way: Integers, share: float | Float64) -> Integers:
    return np.asarray(np.rint(way * share).astype(np.int64))


def _clipped_sum(
    training: PrivateTraining, arrays: Sequence[Float64], rows: PrivateRows, random_bytes: RandomBytes
) -> Integers:
    """Return the sum of clipped gradients at the given parameters, of all patients or of a newly drawn sample."""
    layers = [Layer(weight, bias) for weight, bias in zip(arrays[::2], arrays[1::2], strict=True)]
    rate = training.promise.sampling
    if rate is not None:
        rows = rows.taken(drawn_rows(len(rows.outcomes), rows.patients, rate, random_bytes))
    shared, room = training.trained // 2, training.ring.room
    return training.rounded(clipped_gradients(layers, training.promise.clip, rows, shared=shared, room=room))
