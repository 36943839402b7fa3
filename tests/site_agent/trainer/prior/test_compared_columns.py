"""A column in another unit is detected at its own site, from sums that are announced anyway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.prior.prior_gain import CONCEPTS, plan_of_tables, split_of, uci_tables
from global_layers.one_process import run_rounds
from protos.plan.concepts import NumberConcept, columns_of
from protos.plan.prior_sums import Standard
from site_agent.trainer.data.dataset import prepare_rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.concept_columns import MappedNumber, suspicions
from site_agent.trainer.prior.prior_study import PriorStudy
from tests.for_each import for_each, in_turns

_TABLES = uci_tables(CONCEPTS.parent)
_CREATININE = NumberConcept(
    kind="number", name="creatinine", definition="Creatinine in serum.", unit="mg/dl", low=0.0, high=2_000.0
)
_MISTAKES = {"chol": 1 / 38.67, "trestbps": 1 / 7.50062}  # in mmol/l and in kPa


def _found(tables: Mapping[str, Table], rows: int, seed: int) -> dict[str, tuple[tuple[str, str], ...]]:
    """The columns that each clinic reports in one run."""
    plan, studies = plan_of_tables(tables, 3), {}
    for name, table in tables.items():
        split = split_of(table, rows, seed)
        studies[name] = PriorStudy(
            plan, prepare_rows(table, split)[0], table, split, site=name, secret=bytes(32), fewest=0
        )
    run_rounds(plan, studies)
    for study in studies.values():
        study.known_by_others()
    return {name: study.suspicions for name, study in studies.items()}


def _compared(values: np.ndarray, *, is_used: bool = True) -> int:
    of_column = {"means": np.array([1.0 / 2_000]), "deviations": np.array([0.4 / 2_000])}
    of_rows = {"rows": 100, "outcome_means": np.full(1, 0.5), "outcome_deviation": 1.0}
    others = Standard(is_used=np.array([is_used]), **of_column, **of_rows)
    mapped = MappedNumber(feature="krea", factor=1.0, offset=0.0, low=0.0, high=2_000.0)
    return len([*suspicions(columns_of((_CREATININE,)), [mapped], {"krea": values}, others)])


@pytest.mark.parametrize("rows", [50, 0])
@for_each("seed", range(3))
def test_four_heart_clinics_without_a_mistake_raise_no_alarm(seed: int, rows: int) -> None:
    """Natural differences between hospitals are no suspicion."""
    assert _found(_TABLES, rows, seed) == dict.fromkeys(_TABLES, ())


@pytest.mark.parametrize(("site", "feature"), in_turns(_TABLES, list(_MISTAKES)))
def test_a_mistake_of_one_clinic_is_found_by_this_clinic(site: str, feature: str) -> None:
    """The suspicion names the clinic's own column, and no other one."""
    own = _TABLES[site].features
    if feature not in own:
        pytest.skip("this clinic has no such column")
    changed = replace(_TABLES[site], features={**own, feature: own[feature] * _MISTAKES[feature]})

    found = _found({**_TABLES, site: changed}, 0, 11)

    assert [one for one, _ in found[site]] == [feature]


@for_each("seed", range(10))
def test_another_unit_is_reported_unless_the_figures_are_of_too_few_other_sites(seed: int) -> None:
    """Creatinine in µmol/l is far from mg/dl. If one other site alone records a column, its mean is not shown."""
    values = np.random.default_rng(seed).lognormal(0.0, 0.4, 80)

    assert _compared(values) == 0
    assert _compared(values * 88.42) == 1
    assert _compared(values * 88.42, is_used=False) == 0


def test_values_beyond_the_concepts_range_are_named_without_any_other_site() -> None:
    """Such values would be cut to the range, and the sums would not show them."""
    assert _compared(np.full(50, 4_000.0) + np.arange(50), is_used=False) == 1
