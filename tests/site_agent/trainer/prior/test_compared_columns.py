"""A column in another unit, or with swapped codes, is detected at its own site, from sums that are announced anyway."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.prior.prior_gain import CONCEPTS, uci_tables
from benchmarks.prior.swapped_columns import MISTAKES, found_in, with_mistake
from protos.plan.concepts import CodedConcept, Conversion, NumberConcept, columns_of
from site_agent.trainer.disk import find_suspicions, keep_suspicions
from site_agent.trainer.prior.compared_columns import OthersColumns, OwnColumn, Suspicion, suspicions
from tests.for_each import for_each, in_turns

_TABLES = uci_tables(CONCEPTS.parent)
_CREATININE = NumberConcept(
    kind="number",
    name="creatinine",
    definition="Creatinine in serum.",
    unit="mg/dl",
    low=0.0,
    high=2_000.0,
    conversions=(Conversion(unit="µmol/l", factor=1 / 88.42),),
)
_SEX = CodedConcept(kind="codes", name="sex", definition="Sex.", codes=("female", "male"))


def _compared(values: np.ndarray, *, are_enough: bool = True, mean: float = 1.0, deviation: float = 0.4) -> list[str]:
    others = OthersColumns(
        counts=np.array([900.0]),
        means=np.array([mean]),
        deviations=np.array([deviation]),
        are_enough=np.array([are_enough]),
    )
    own = OwnColumn(place=0, feature="krea", values=values, other_units={"µmol/l": values / 88.42})
    return [one.kind for one in suspicions(columns_of((_CREATININE,)), [own], others, None)]


@pytest.mark.parametrize("rows", [50, 0])
@for_each("seed", range(3))
def test_four_heart_clinics_without_a_mistake_raise_no_alarm(seed: int, rows: int) -> None:
    """Natural differences between hospitals are no suspicion."""
    found = found_in(_TABLES, rows, seed)

    assert found == dict.fromkeys(_TABLES, ())


@pytest.mark.parametrize(
    ("site", "mistake"), in_turns(_TABLES, ["cholesterol in mmol/l", "pressure in kPa", "exercise angina swapped"])
)
def test_a_mistake_of_one_clinic_is_found_by_this_clinic(site: str, mistake: str) -> None:
    """The suspicion names the clinic's own column, and no other one."""
    changed = with_mistake(_TABLES, site, mistake)
    if changed is None:
        pytest.skip("this clinic has no such column")

    found = found_in(changed, 0, 11)

    assert [one.feature for one in found[site]] == [MISTAKES[mistake][0]]
    assert found[site][0].kind == ("codes" if "swapped" in mistake else "unit")


def test_swapped_codes_of_the_sex_are_found_where_nearly_all_are_men() -> None:
    """Three of four patients elsewhere are men; at the veterans' clinic nearly all would be women."""
    changed = with_mistake(_TABLES, "va", "sex swapped")
    assert changed is not None

    (found,) = found_in(changed, 0, 0)["va"]

    assert (found.feature, found.kind) == ("sex", "codes")


@for_each("seed", range(30))
def test_a_unit_of_the_plan_explains_a_difference(seed: int) -> None:
    """Creatinine in µmol/l is named as such, and the same values in mg/dl raise no alarm."""
    values = np.random.default_rng(seed).lognormal(0.0, 0.4, 80)

    assert _compared(values) == []
    assert _compared(values * 88.42) == ["unit"]


@for_each("seed", range(10))
def test_figures_of_too_few_other_sites_are_never_used(seed: int) -> None:
    """If only one other site records a column, its mean is not shown, however different it is."""
    values = np.random.default_rng(seed).lognormal(0.0, 0.4, 80) * 88.42

    assert _compared(values, are_enough=False) == []


def test_values_beyond_the_concepts_range_are_named_without_any_other_site() -> None:
    """Such values would be cut to the range, and the sums would not show them."""
    assert _compared(np.full(50, 4_000.0) + np.arange(50), are_enough=False) == ["range"]


@pytest.mark.parametrize(("share", "kinds"), [(0.04, ["codes"]), (0.5, []), (0.9, [])])
def test_a_share_on_the_other_side_suggests_swapped_codes(share: float, kinds: list[str]) -> None:
    """4% here and 85% elsewhere look swapped; half and half may be anything."""
    values = (np.arange(200) < 200 * share).astype(np.float64)
    others = OthersColumns(
        counts=np.array([900.0]), means=np.array([0.85]), deviations=np.array([0.36]), are_enough=np.array([True])
    )
    own = OwnColumn(place=0, feature="sex", values=values, other_units={})

    found = [one.kind for one in suspicions(columns_of((_SEX,)), [own], others, None)]

    assert found == kinds


def test_review_reads_what_the_newest_run_found(tmp_path: Path) -> None:
    """Sentences come back with the run's name; without a file there are none."""
    told = Suspicion(concept="creatinine", feature="krea", kind="unit", words="the mean is 88 here").sentence

    assert find_suspicions(tmp_path) == ()
    keep_suspicions(tmp_path, "study-v1", [told])

    assert find_suspicions(tmp_path) == (f"In the run study-v1, {told}",)
