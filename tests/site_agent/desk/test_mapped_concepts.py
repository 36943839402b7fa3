"""Review shows the question and the columns with a common meaning, from plan and contract alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protos.errors import ConfigurationError
from protos.plan.concepts import NumberConcept, Question
from protos.plan.plan import Plan, plan_from_json
from site_agent.desk.mapped_concepts import concept_sections
from site_agent.desk.plan_review import as_lines
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.prior.concept_columns import Recorded, mapped_number
from tests.site_agent.trainer.prior.prior_federation import prior_plan

OTHERS = ["berlin", "cluj", "delft"]
CONCEPTS: list[dict[str, Any]] = [
    {
        "kind": "number", "name": "total-cholesterol", "definition": "Total cholesterol.", "unit": "mg/dl",
        "low": 50.0, "high": 800.0, "conversions": [{"unit": "mmol/l", "factor": 38.67}],
    },
    {"kind": "codes", "name": "sex", "definition": "Sex.", "codes": ["female", "male"]},
    {"kind": "codes", "name": "status", "definition": "The outcome.", "codes": ["free", "ill"], "recorded_by": OTHERS},
    {
        "kind": "number", "name": "age", "definition": "Age.", "unit": "years", "low": 0.0, "high": 120.0,
        "recorded_by": OTHERS,
    },
]  # fmt: skip
QUESTION = {key: f"the {key}" for key in Question.model_fields}


def _plan(factor: float = 38.67) -> Plan:
    document = prior_plan("breast-cancer", concepts=CONCEPTS, fewest_sites=3).model_dump(mode="json") | {
        "question": QUESTION
    }
    document["concepts"][0]["conversions"][0]["factor"] = factor
    return plan_from_json(json.dumps(document))


def _contract(unit: str = "mmol/l", man: str = "male", weight: str = "body-weight") -> Contract:
    columns = [
        {"name": "chol", "role": "feature", "type": "numeric", "unit": unit, "concept": "total-cholesterol",
         "range": [1, 20]},
        {
            "name": "sex", "role": "feature", "type": "binary", "codes": ["0", "1"], "concept": "sex",
            "concept_codes": [man, "female"],
        },
        {"name": "weight", "role": "feature", "type": "numeric", "concept": weight},
        {"name": "died", "role": "target", "task": "binary", "positive": ["free"], "negative": ["ill"],
         "concept": "status", "concept_codes": ["free", "ill"]},
    ]  # fmt: skip
    return Contract.model_validate_json(json.dumps({"format": {"header": True}, "columns": columns}))


def test_the_mapping_is_shown_with_units_and_codes() -> None:
    """Each concept stands beside this site's column, its factor and its codes; what is not mapped is named."""
    lines = "\n".join(as_lines(concept_sections(_plan(), _contract(), "ahus")))

    assert "This site records 3 of the 4 concepts of the plan." in lines
    assert "died (ill is free, free is ill)" in lines
    assert "chol in mmol/l, times 38.67" in lines
    assert "sex (0 is male, 1 is female)" in lines
    assert "The contract of this site names concepts that the plan does not have: body-weight" in lines
    assert "cannot take part now" not in lines
    plan = _plan().model_dump_json().replace('"male"', '"ma\u0308le"')
    contract = _contract().model_dump_json().replace('"male"', '"m\xe4le"')
    sections = concept_sections(plan_from_json(plan), Contract.model_validate_json(contract), "ahus")
    assert "sex (0 is m\xe4le, 1 is female)" in "\n".join(as_lines(sections))  # however the accent is written


def test_a_unit_without_a_factor_is_told_before_anything_runs() -> None:
    """A unit that the plan does not convert is shown as what has to be corrected, with all other faults."""
    lines = "\n".join(as_lines(concept_sections(_plan(), _contract("g/l", "m", weight="sex"), "ahus")))

    assert "This site cannot take part now\n  chol is in g/l" in lines
    assert "maps m to sex, which has female, male. The contract maps sex and weight to sex." in lines
    assert "same unit" not in lines
    other = "\n".join(as_lines(concept_sections(_plan(), _contract(unit="mg/dL"), "ahus")))
    assert "If mg/dl is the same unit" in other
    micro = json.dumps(CONCEPTS[0] | {"conversions": [{"unit": "\u00b5mol/l", "factor": 1.0}]})
    with pytest.raises(ConfigurationError, match="same unit") as told:
        mapped_number(NumberConcept.model_validate_json(micro), Recorded(name="chol", concept="c", unit="umol/L"))
    assert "no conversion" not in told.value.what
    assert len({_contract(f"{sign}mol/l").digest for sign in "\u00b5\u03bc"}) == 1


def test_a_factor_the_wrong_way_round_is_asked_about() -> None:
    """The contract's range of 1 to 20 mmol/l would become less than 1 mg/dl, and every patient the lower limit."""
    asked = "are unit and factor right?"

    assert asked in "\n".join(as_lines(concept_sections(_plan(1 / 38.67), _contract(), "ahus")))
    assert asked not in "\n".join(as_lines(concept_sections(_plan(), _contract(), "ahus")))


def test_the_question_is_shown() -> None:
    """Every hospital reads what the model predicts, for whom, and who is responsible."""
    lines = "\n".join(as_lines(concept_sections(_plan(), _contract(), "ahus")))

    assert all(text in lines for text in QUESTION.values())


def test_without_a_contract_the_page_says_so() -> None:
    """A reviewer who cannot read the contract is informed that nothing was compared."""
    assert any("cannot read the contract" in line for line in as_lines(concept_sections(_plan(), None, "ahus")))
