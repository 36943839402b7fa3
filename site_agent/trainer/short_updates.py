"""Turns a site's updates into the short integers of a plan, and keeps what their rounding left out."""

from __future__ import annotations

import numpy as np

from protos.numbers.short_integers import WIDTHS, Integers, encode_short, rounding_stream, unpack_exponents
from protos.plan.architecture import TensorSpec
from protos.plan.canonical import digest
from protos.plan.layer_scales import largest_integer, layer_parts
from protos.plan.manifest import Manifest
from protos.plan.network_plan import NetworkPlan
from protos.wire.messages import MalformedMessage
from site_agent.trainer.requests import Asked, Vector


class ShortUpdates:
    """Encodes the updates of one site in one run.

    `key` comes from the site's secret, and draws the rounding. `residual` is float32 of shape (numbers of an update,):
    private state, which never leaves the site.
    """

    def __init__(self, plan: NetworkPlan, manifest: Manifest, tensors: tuple[TensorSpec, ...], key: bytes) -> None:
        self._plan, self._layers, self._key = plan, len(manifest.layers), key
        self._parts = tuple(layer_parts(manifest, tensors))
        self.residual = np.zeros(sum(tensor.number_count for tensor in tensors), np.float32)

    def encode(self, update: Vector, asked: Asked, weight: float) -> tuple[Integers, int]:
        """Return an update as integers, and how many of its values were clipped.

        Args:
            update: float32 of the shape of `residual`.
            weight: of this site in the round's mean, above 0.

        Raises:
            MalformedMessage: the offer has scales for other layers.
            NotFinite: a value is infinite or not a number.
        """
        if len(asked.scales) != self._layers:
            raise MalformedMessage("scales of other layers than the manifest's")
        exponents, out = unpack_exponents(asked.scales), np.empty(update.size, WIDTHS[self._plan.bits])
        stream, clipped = rounding_stream(digest("rounding", self._key, asked.round)), 0
        for layer, part in self._parts:
            values, rest = update[part], self.residual[part]
            limit = largest_integer(self._plan, exponents[layer], weight, asked.summed_rows)
            clipped += encode_short(values, rest, exponents[layer], weight, limit, stream, out[part])
        return out, clipped
