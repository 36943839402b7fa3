"""Every sent number has at least the smallest set of contributors, under every method of the catalogue. For each number
of the vector and each scalar the sites are counted whose contribution was other than 0 in some round. A number without
contributors gives no information."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protos.plan.contributors import kinds_of, smallest_set
from protos.plan.plan import Plan
from site_agent.trainer.requests import Answer
from site_agent.trainer.study import Study
from tests.laws.catalogue import COLUMNS, NAMES, catalogue_plan
from tests.laws.contributions import SMALLEST, contributors, plan_for

by_method = pytest.mark.parametrize("name", NAMES)


@by_method
def test_every_number_has_the_smallest_set_of_contributors(name: str) -> None:
    """As counted from what sites send, and as the plan says of every kind of number."""
    plan = plan_for(name)

    found = contributors(plan)

    assert {number: count for number, count in found.items() if 0 < count < SMALLEST} == {}
    assert all(len(sites) >= smallest_set(plan, SMALLEST) for sites in kinds_of(plan).values())
    assert found or name == "local"


def test_a_method_whose_sites_leave_numbers_out_for_themselves_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails for a method that breaks the rule."""
    honest = Study.train

    def train(self: Study, asked: Any, received: Any) -> Answer:
        answer = honest(self, asked, received)
        return Answer(updates=answer.updates * np.float32(self.seeds.site == "ahus"), scalars=answer.scalars)

    monkeypatch.setattr(Study, "train", train)

    assert min(count for count in contributors(plan_for("fedavg")).values() if count) < SMALLEST


def test_a_column_of_too_few_sites_is_refused_with_the_plan() -> None:
    """Two of four sites record a column whose layer is shared: the plan is refused. An unmasked sum would show it."""
    two = [{"name": "b", "recorded_by": ["ahus", "berlin"]} if name == "b" else name for name in COLUMNS]

    with pytest.raises(ValueError, match="only 2 sites record the column b, but masking needs at least 3 sites"):
        catalogue_plan("fedavg", **_keys(plan_for("fedavg")), masking={"required": True}, columns=two)

    in_clear = catalogue_plan("fedavg", **_keys(plan_for("fedavg")))
    counts = contributors(in_clear, lacking={"cluj": "b", "dijon": "b"})
    assert {count for count in counts.values() if count} == {2, 4}


def _keys(plan: Plan) -> dict[str, Any]:
    return plan.model_dump(mode="json", include={"sites", "optimiser"})
