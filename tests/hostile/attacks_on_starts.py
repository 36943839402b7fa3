"""A coordinator that chooses what a site begins with, to read rows out of the sum of the first round.

With a first layer of the coordinator's choice each number of the update can stand for very few rows. The site computes
the first values from the plan, so such a round is refused before its parameters arrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from protos.plan.manifest import manifest_of
from protos.wire.messages import Chunk
from site_agent.gate.itinerary import Itinerary
from tests.hostile.attack import Attack, played
from tests.hostile.attacks_on_rounds import asked, joined
from tests.hostile.masking_federation import masked_plan, of_kind

Vector: TypeAlias = npt.NDArray[np.float32]

NEURONS, COLUMNS = 40, 7
PLAN: dict[str, Any] = {
    "secure_aggregation": "off",
    "architecture": {
        "name": "named-tensors",
        "tensors": [
            {"name": "input.weight", "shape": [NEURONS, COLUMNS], "bound": 0.25},
            {"name": "input.bias", "shape": [NEURONS], "bound": 0.0},
        ],
    },
}


@contextmanager
def with_any_first_parameters() -> Iterator[None]:
    """A site trains from whatever parameters a coordinator sends for the first round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Itinerary, "_check_start", lambda self, offer, exchange: None)
        yield


def imprint() -> Vector:
    """All neurons measure the same, each from a higher threshold: neighbours differ by the rows between them."""
    weights = np.tile(np.linspace(0.1, 0.7, COLUMNS, dtype=np.float32), NEURONS)
    return np.concatenate([weights, -np.linspace(0.0, 4.0, NEURONS, dtype=np.float32)])


def first_parameters_of_the_coordinator(weakened: bool) -> bool:
    """Have a site train from a layer that separates its rows by thresholds."""

    async def scene(folder: Path) -> bool:
        site = await joined(folder, masked_plan("abc", **PLAN))
        answers = of_kind(await site.tell(*asked(0, vector=imprint())), Chunk)
        if not answers:
            (record,) = site.records("coordinator_refused")
            assert record["reason"] == "first parameters that are not the plan's"
        return bool(answers)

    return played(scene, weakened, with_any_first_parameters)


def first_control_variates_of_the_coordinator(weakened: bool) -> bool:
    """Push each site's first steps in a direction of the coordinator's, by control variates that are not 0."""
    plan = masked_plan("abc", **PLAN | {"method": {"name": "scaffold"}})
    first = manifest_of(plan).initial_parameters(plan.seed)

    async def scene(folder: Path) -> bool:
        site = await joined(folder, plan)
        answers = await site.tell(*asked(0, vector=np.append(first, np.full_like(first, 0.5))))
        return bool(of_kind(answers, Chunk))

    return played(scene, weakened, with_any_first_parameters)


ATTACKS = (
    Attack(
        name="first-parameters",
        tries="the coordinator chooses the parameters of the first round, to imprint rows into its sum",
        without="the check of the first parameters",
        run=first_parameters_of_the_coordinator,
    ),
    Attack(
        name="first-control-variates",
        tries="the coordinator sends control variates before anything was trained",
        without="the check of the first parameters",
        run=first_control_variates_of_the_coordinator,
    ),
)
