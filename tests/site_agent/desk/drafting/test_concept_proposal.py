"""A concept gets the right column or none, and never without a person."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from benchmarks.prior.prior_gain import CONCEPTS
from benchmarks.prior.proposed_concepts import STYLES, counted
from protos.errors import ConfigurationError
from protos.plan.concepts import CodedConcept, Concept, Conversion, NumberConcept, read_concepts
from site_agent.commands.data_commands import data
from site_agent.desk.drafting.concept_proposal import likeness
from site_agent.desk.drafting.describe import describe
from site_agent.trainer.data.contract import read_contract
from tests.for_each import for_each

_CHOLESTEROL = NumberConcept(
    kind="number",
    name="total-cholesterol",
    definition="Total cholesterol in serum.",
    unit="mg/dl",
    low=50.0,
    high=800.0,
    conversions=(Conversion(unit="mmol/l", factor=38.67),),
)
_SEX = CodedConcept(kind="codes", name="sex", definition="Sex.", codes=("female", "male"))


def _table(folder: Path, columns: dict[str, list[object]]) -> Path:
    path = folder / "table.csv"
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join(",".join(map(str, row)) for row in [tuple(columns), *rows]) + "\n")
    return path


def _proposals(path: Path, *concepts: Concept) -> dict[str, dict[str, object]]:
    draft = yaml.safe_load(describe(path, concepts=concepts).text)
    return {column["name"]: column for column in draft["columns"] if "proposed_concept" in column}


def _cholesterol(seed: int, unit: str) -> list[object]:
    values = np.random.default_rng(seed).normal(230, 45, 120).clip(110, 420)
    return [round(value / (38.67 if unit == "mmol/l" else 1.0), 2) for value in values]


@pytest.mark.parametrize(("style", "fewest"), [("original", 48), ("merged copy", 48), ("German", 5), ("numbered", 1)])
def test_on_the_heart_clinics_nothing_wrong_is_proposed(style: str, fewest: int) -> None:
    """Under four styles of names each concept has the right column or none; with the plan's synonyms most have one."""
    found = counted(style, read_concepts(CONCEPTS, consequence=""))

    assert found["wrong"] == 0
    assert found["right"] >= fewest
    assert found.total() == 48
    assert style in STYLES


@pytest.mark.parametrize("unit", ["mg/dl", "mmol/l"])
@for_each("seed", range(20))
def test_the_unit_that_the_values_fit_is_proposed(tmp_path: Path, seed: int, unit: str) -> None:
    """Cholesterol in another unit of the plan has this unit in the draft."""
    outcome: list[object] = [place % 2 for place in range(120)]
    path = _table(tmp_path, {"chol": _cholesterol(seed, unit), "outcome": outcome})

    found = _proposals(path, _CHOLESTEROL)

    assert found["chol"]["proposed_concept"] == "total-cholesterol"
    assert found["chol"]["unit"] == unit


def test_a_draft_is_refused_until_a_person_confirms_each_concept(tmp_path: Path) -> None:
    """The key proposed_concept stops the contract; renamed to concept it is read."""
    path = _table(tmp_path, {"chol": _cholesterol(1, "mg/dl"), "outcome": [place % 2 for place in range(120)]})
    contract = tmp_path / "contract.yaml"
    contract.write_text(describe(path, concepts=(_CHOLESTEROL,)).text)

    with pytest.raises(ConfigurationError, match="a person must decide about this proposal"):
        read_contract(contract)
    contract.write_text(contract.read_text().replace("proposed_concept: ", "concept: "))

    (feature,) = read_contract(contract).features
    assert feature.concept == "total-cholesterol"


def test_two_columns_that_fit_equally_well_are_both_named_and_none_is_proposed(tmp_path: Path) -> None:
    """A person chooses between the first and the second measurement."""
    outcome: list[object] = [place % 2 for place in range(120)]
    both = {"chol_1": _cholesterol(1, "mg/dl"), "chol_2": _cholesterol(2, "mg/dl"), "outcome": outcome}

    text = describe(_table(tmp_path, both), concepts=(_CHOLESTEROL,)).text

    assert "proposed_concept:" not in text
    assert "no column for total-cholesterol: chol_1 and chol_2 fit about equally well" in text
    assert "columns without a concept: chol_1, chol_2" in text


def test_codes_are_proposed_by_their_letters_and_never_by_0_and_1(tmp_path: Path) -> None:
    """f and m are female and male; nobody can see that of 0 and 1."""
    letters: list[object] = ["f", "m", "m"] * 40
    outcome: list[object] = [place % 2 for place in range(120)]

    spelt = _proposals(_table(tmp_path, {"sex": letters, "outcome": outcome}), _SEX)
    numbers: list[object] = [int(letter == "m") for letter in letters]
    coded = _proposals(_table(tmp_path, {"sex": numbers, "outcome": outcome}), _SEX)

    assert spelt["sex"]["concept_codes"] == ["female", "male"]
    assert coded["sex"]["proposed_concept"] == "sex"
    assert "concept_codes" not in coded["sex"]


def test_values_that_fit_no_unit_are_not_proposed(tmp_path: Path) -> None:
    """A column of the right name with impossible values is named with the reason."""
    outcome: list[object] = [place % 2 for place in range(120)]
    path = _table(tmp_path, {"chol": [20_000 + 7 * place for place in range(120)], "outcome": outcome})

    text = describe(path, concepts=(_CHOLESTEROL,)).text

    assert "no column for total-cholesterol: chol has such a name, and its values do not fit" in text


@pytest.mark.parametrize(
    ("column", "name", "is_alike"),
    [
        ("TotalChol", "total-cholesterol", True),
        ("sbp", "systolic blood pressure", True),
        ("exang", "exercise-angina", True),
        ("Größe", "grosse", True),
        ("thalach", "thallium-scan", False),
        ("age", "sugar-percentage", False),
        ("V3", "total-cholesterol", False),
    ],
)
def test_names_that_mean_the_same_resemble_each_other(column: str, name: str, *, is_alike: bool) -> None:
    """Capitals, abbreviations and accents do not matter, and like letters in other words do not suffice."""
    found = likeness(column, (name,))

    assert (found >= 0.55) == is_alike


def test_the_command_reads_a_plan_and_says_what_found_no_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any file with the key concepts will do, and its other keys are not read."""
    monkeypatch.setattr("site_agent.commands.data_commands.give_up_network", lambda: True)
    path = _table(tmp_path, {"chol": _cholesterol(3, "mg/dl"), "outcome": [place % 2 for place in range(120)]})
    plan = tmp_path / "plan.yaml"
    concepts = [one.model_dump(mode="json") for one in (_CHOLESTEROL, _SEX)]
    plan.write_text(yaml.safe_dump({"study": "any", "concepts": concepts}))

    told = CliRunner().invoke(data, ["describe", str(path), "--concepts", str(plan)])

    assert told.exit_code == 0
    assert "A column is proposed for 1 of 2 concepts" in told.output
    assert "# no column for sex: no column has such a name" in told.output
