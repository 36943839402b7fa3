"""Turns a site's updates into the short integers of a plan, and keeps what their rounding left out."""

from __future__ import annotations

import numpy as np

from protos.numbers.short_integers import (
    WIDTHS,
    Integers,
    encode_short,
    largest_integer,
    rounding_stream,
    unpack_exponents,
)
from protos.plan.architecture import TensorSpec
from protos.plan.canonical import digest
from protos.plan.manifest import Manifest
from protos.plan.network_plan import NetworkPlan
from protos.plan.short_wire import layer_parts
from protos.wire.messages import MalformedMessage
from site_agent.trainer.requests import Asked, Vector


class ShortUpdates:
    """Encodes the updates of one site in one run.

    `key` comes from the site's secret, and draws the rounding. `residual` is float32 of shape (numbers of an update,):
    private state, which never leaves the site.
    """

    def __init__(self, plan: NetworkPlan, manifest: Manifest, tensors: tuple[TensorSpec, ...], key: bytes) -> None:
        self._layers, self._key, self._kind = manifest.layers, key, WIDTHS[plan.bits]
        self._limit = largest_integer(plan.bits, len(plan.sites))
        self._parts = tuple(layer_parts(tensors))
        self.residual = np.zeros(sum(tensor.number_count for tensor in tensors), np.float32)

    def encode(self, update: Vector, asked: Asked, weight: float) -> Integers:
        """Return an update as integers.

        Args:
            update: float32 of the shape of `residual`.
            weight: of this site in the round's mean, above 0.

        Raises:
            MalformedMessage: the offer has scales for other layers.
            NotFinite: a value is infinite or not a number.
        """
        if len(asked.scales) != len(self._layers):
            raise MalformedMessage("scales of other layers than the manifest's")
        exponents = dict(zip(self._layers, unpack_exponents(asked.scales), strict=True))
        stream, out = rounding_stream(digest("rounding", self._key, asked.round)), np.empty(update.size, self._kind)
        for layer, part in self._parts:
            values, rest = update[part], self.residual[part]
            encode_short(values, rest, exponents[layer], weight, self._limit, stream, out[part])
        return out
