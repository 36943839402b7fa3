"""What training asks of a network beside its logits.

Every network of this folder maps rows to representations and these to logits. A parameter may carry one
leading axis of size S: S independent copies of the network, trained at once. Rows then have it too, and
so has every result; nothing mixes along it.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Represents(Protocol):
    """A network whose logits are `decide(represent(rows))`; a hospital's own module need not be one."""

    def represent(self, rows: Tensor) -> tuple[Tensor, ...]:
        """What the network makes of encoded rows, (B, d) or (S, B, d), before it decides.

        A network with a common and a unique extractor returns both results, in this order.
        """
        ...

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        """Logits (B, C) or (S, B, C) of what `represent` returned."""
        ...
