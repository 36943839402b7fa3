"""Which parameter of a network belongs to which part: input, body, head."""

from __future__ import annotations

from protos.architecture import Architecture, Part, network_tensors


def part_of(architecture: Architecture, columns: int, outputs: int) -> dict[str, Part]:
    """Every parameter's name with its part, in the network's own order.

    Raises:
        ConfigurationError: the sizes are out of range.
    """
    return {spec.name: spec.part for spec in network_tensors(architecture, columns=columns, outputs=outputs)}
