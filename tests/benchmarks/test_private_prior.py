"""The measurement of the private prior compares plans on the same patients, and leaves out concepts by one rule."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.prior.prior_gain import CONCEPTS, of_one_run, plan_of_tables, uci_tables
from benchmarks.privacy import private_plan
from benchmarks.private_prior import MOSTLY_MISSING, clinics_at, gains
from protos.plan.plan import Plan
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.concept_mapping import mapped_columns, values_of

TABLES = uci_tables(CONCEPTS.parent)


def concepts_recorded(plan: Plan, table: Table, site: str) -> set[str]:
    """The concepts that a clinic records for more than half of its patients."""
    assert plan.prior is not None
    mapped = mapped_columns(plan.prior.concepts, table.contract, site)
    assert table.target is not None
    values = values_of(mapped, table.features, len(table.target))
    are_most = np.isnan(values).mean(axis=0) < 0.5
    return {column.concept.name for column, is_most in zip(plan.prior.columns, are_most, strict=True) if is_most}


def test_exactly_the_concepts_that_fewer_than_three_clinics_record_for_most_patients_are_left_out() -> None:
    """So the list follows from one rule about missing values, and from no outcome."""
    plan = private_plan(TABLES, 1.0)
    recorded = [concepts_recorded(plan, table, site) for site, table in TABLES.items()]
    names = [concept.name for concept in plan.concepts or ()]

    rare = [name for name in names if sum(name in one for one in recorded) < 3]

    assert tuple(rare) == MOSTLY_MISSING
    assert [concept.name for concept in private_plan(TABLES, 1.0, MOSTLY_MISSING).concepts or ()] == [
        name for name in names if name not in MOSTLY_MISSING
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_models_that_are_fitted_once_for_all_draws_give_the_gain_of_a_whole_run() -> None:
    """Without noise the gain equals that of the other measurement, bit for bit."""
    plan = plan_of_tables(TABLES, 3)
    whole = of_one_run(TABLES, plan, dict.fromkeys(TABLES, 0), 3, ("va",))["va"]

    found = gains(clinics_at(TABLES, 3, ("va",)), plan)

    assert found == {"va": whole["joined"] - whole["alone"]}
