"""The commented examples are the reference of every key, so they must load and have all keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from coordinator.commands.configuration import CoordinatorConfiguration, read_configuration
from protos.plan.documents import parse_document
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import plan_from_yaml, read_plan
from protos.plan.plan_head import PlanHead
from protos.plan.prior_plan import PriorPlan
from protos.plan.statistics_plan import StatisticsPlan
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.data.contract import Contract, read_contract

EXAMPLES = Path(__file__).parents[2] / "deploy/examples"
MODELS: dict[str, type[BaseModel]] = {
    "coordinator.yaml": CoordinatorConfiguration, "plan.yaml": NetworkPlan, "plan-statistics.yaml": StatisticsPlan,
    "plan-prior.yaml": PriorPlan, "hospital.yaml": Hospital, "contract.yaml": Contract,
}  # fmt: skip


def variants(name: str) -> Iterator[dict[str, Any]]:
    """The example as it stands, then once with each of its `# or {...}` lines in force; null there takes a key away."""
    text = (EXAMPLES / name).read_text()
    standing = yaml.safe_load(text)
    yield standing
    for line in re.findall(r"^ *# or (\{.*\})$", text, re.MULTILINE):
        other, document = yaml.safe_load(line), deepcopy(standing)
        if "role" in other:
            document["columns"] = [other if old["role"] == other["role"] else old for old in document["columns"]]
        else:
            document = {
                key: value for key, value in (document | other).items() if value is not None or key not in other
            }
        yield document


def load(name: str, document: dict[str, Any]) -> BaseModel:
    """A variant as the programs would read it."""
    raw = yaml.safe_dump(document).encode()
    if "kind" in document:
        return plan_from_yaml(raw, source=name, consequence="")
    return parse_document(raw, MODELS[name], source=name, consequence="")


@cache
def loaded(name: str) -> tuple[BaseModel, ...]:
    """Every variant, read once for all tests that look at them."""
    return tuple(load(name, document) for document in variants(name))


def _models_in(annotation: object) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        inner = (_models_in(field.annotation) for field in annotation.model_fields.values())
        return {annotation}.union(*inner)
    return set().union(*(_models_in(argument) for argument in get_args(annotation)))


def _given_fields(value: object) -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(value, BaseModel):
        for name in value.model_fields_set:
            yield type(value), name
            yield from _given_fields(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _given_fields(item)


def test_the_coordinators_example_is_read_by_the_coordinator() -> None:
    """The programs' own reader accepts coordinator.yaml, and its plan stands beside it."""
    configuration = read_configuration(EXAMPLES / "coordinator.yaml")

    assert configuration.plans == (str(EXAMPLES / "plan.yaml"),)


def test_the_hospitals_example_is_read_by_the_site_agent() -> None:
    """The programs' own readers accept hospital.yaml and the contract that it names."""
    hospital = read_hospital(EXAMPLES / "hospital.yaml")

    contract = read_contract(Path(hospital.data.contract))
    assert contract.patient is not None


def test_the_examples_belong_together() -> None:
    """The hospital of the example is in the plan of the example, and its policy allows that plan."""
    hospital = read_hospital(EXAMPLES / "hospital.yaml")
    plan = read_plan(EXAMPLES / "plan.yaml", consequence="")
    assert isinstance(plan, NetworkPlan)

    assert hospital.site in plan.site_names
    assert plan.method.name in hospital.policy.methods
    assert plan.training_count >= hospital.policy.smallest_sites
    assert plan.schedule.rounds <= hospital.policy.largest_rounds


@pytest.mark.parametrize("name", MODELS)
def test_every_other_form_loads(name: str) -> None:
    """The lines behind `# or` are as valid as the lines above them."""
    assert all(isinstance(one, MODELS[name]) for one in loaded(name))


@pytest.mark.parametrize("name", MODELS)
def test_no_key_is_left_out(name: str) -> None:
    """The example has every key of every record, so the reference is complete."""
    known = {(model, field) for model in _models_in(MODELS[name]) for field in model.model_fields}

    files = [each for each in MODELS if each.startswith("plan")] if name.startswith("plan") else [name]
    given = {found for each in files for one in loaded(each) for found in _given_fields(one)}
    if name.startswith("plan-"):  # plan.yaml explains the keys that all kinds have
        known = {(MODELS[name], field) for field in MODELS[name].model_fields if field not in PlanHead.model_fields}
    assert sorted(f"{model.__name__}.{field}" for model, field in known - given) == []
