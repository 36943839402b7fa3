"""Writes a plan for each study of a rehearsal: one or several methods, with a suitable network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import Field, TypeAdapter

from protos.plan.architecture import Architecture, ImageSize, Part
from protos.plan.compatibility import agreed_sizes
from protos.plan.documents import Document, parse_document
from protos.plan.ingredients import (
    AllButNormalisation,
    ColumnByColumn,
    ControlVariates,
    Method,
    Parts,
)
from protos.plan.methods import MethodChoice
from quickstart.hospitals import HospitalData
from site_agent.trainer.data.contract import read_contract

CONCEPTS = Path(__file__).parent.parent / "data" / "uci-heart" / "concepts.yaml"
QUESTION_TERMS = ("age", "sex", "exercise-angina", "st-depression")
_FEWEST_SITES = 3


class Prior(Document):
    """The choice of a prior plan in the place of a method of networks."""

    name: Literal["federated-prior"]


class Question(Document):
    """The odds ratios of a statistics plan in the place of a method. No option of the command names it."""

    name: Literal["odds-ratios"] = "odds-ratios"


Choice: TypeAlias = Annotated[MethodChoice | Prior, Field(discriminator="name")]


class _Asked(Document):
    method: Choice


@dataclass(frozen=True, kw_only=True)
class Study:
    """One study of a rehearsal: its name in the table, its name in the plan, and its method."""

    label: str
    name: str
    choice: Choice | Question


def choice_of(words: str) -> Choice:
    """Return the method choice from a name or from a plan's `method`.

    Raises:
        ConfigurationError: there is no such method.
    """
    text = words if words.lstrip().startswith("{") else json.dumps({"name": words.strip()})
    raw = f"method: {text}".encode()
    return parse_document(raw, _Asked, source="--method", consequence="Nothing was started.").method


def studies_of(methods: Sequence[str]) -> tuple[Study, ...]:
    """Return one study for each of these methods, each with its own name. A method that is listed twice runs once."""
    choices = list(dict.fromkeys(choice_of(words) for words in methods))
    studies: list[Study] = []
    for number, choice in enumerate(choices, start=1):
        name, label = f"quickstart-{choice.name}", choice.name
        if any(study.label == label for study in studies):
            name, label = f"{name}-{number}", f"{label} ({number})"  # the same method with other settings
        studies.append(Study(label=label, name=name, choice=choice))
    return tuple(studies)


def plan_of(
    study: Study, hospitals: Sequence[HospitalData], *, latent: int, is_masked: bool
) -> dict[str, Any]:  # Any: YAML
    """Return a researcher's plan for a method and these hospitals, without sites, schedule, start and masking.

    Hospitals with different columns are aligned by name. CHFL shares the first half of each hospital's columns. The
    others stay private.
    """
    if isinstance(study.choice, Prior):
        return _prior_plan(study, hospitals)
    if isinstance(study.choice, Question):
        return _question_plan(study)
    method = study.choice.method()
    contract = read_contract(hospitals[0].contract)
    image, target = contract.image, contract.target
    network = _network(method, latent) if image is None else _image_network(method, image.image, latent)
    agreed = agreed_sizes(method, TypeAdapter(Architecture).validate_json(json.dumps(network)))
    has_columns = isinstance(method.procedure, ColumnByColumn)
    plan: dict[str, Any] = {
        "kind": "network",
        "study": study.name,
        "version": 1,
        "method": study.choice.model_dump(mode="json"),
        "architecture": network,
        "optimiser": {"name": "adamw", "learning_rate": 0.001 if image is None else 0.003, "weight_decay": 0.0001},
        "weighting": {"name": "rows", "largest_rows": 1024} if study.choice.name == "fedavg" else {"name": "equal"},
        "checkpoint": "local",
    }
    if isinstance(method.procedure, ControlVariates):
        plan["optimiser"] = {"name": "sgd", "learning_rate": 0.01 if image is None else 0.1}
    if "columns" in agreed:
        plan |= _columns(hospitals, share=0.5 if has_columns else 1.0, is_masked=is_masked)
    if "outputs" in agreed:
        plan["outputs"] = 1 if len(target.classes) == 2 else len(target.classes)
    return plan


def _prior_plan(study: Study, hospitals: Sequence[HospitalData]) -> dict[str, Any]:
    """Return a plan for federated-prior with the concepts that three or more of the hospitals record.

    With the default of four, a clinic with few women would remove the column `sex` for all others.
    """
    recorded = {
        hospital.name: {feature.concept for feature in read_contract(hospital.contract).features}
        for hospital in hospitals
    }
    concepts = []
    for concept in yaml.safe_load(CONCEPTS.read_text())["concepts"]:
        sites = sorted(name for name, known in recorded.items() if concept["name"] in known)
        if len(sites) >= _FEWEST_SITES:
            concepts.append(concept | {"recorded_by": sites})
    return {
        "kind": "prior", "study": study.name, "version": 1, "concepts": concepts, "fewest_sites": _FEWEST_SITES,
    }  # fmt: skip


def _question_plan(study: Study) -> dict[str, Any]:
    """Return a plan for the odds ratios of heart disease, of four columns that all four clinics record."""
    known = {concept["name"]: concept for concept in yaml.safe_load(CONCEPTS.read_text())["concepts"]}
    disease = {"kind": "codes", "name": "heart-disease", "definition": "A narrowed artery.", "codes": ["no", "yes"]}
    regression = {"family": "binomial", "outcome": "heart-disease", "terms": list(QUESTION_TERMS)}
    return {
        "kind": "statistics", "study": study.name, "version": 1, "fewest_sites": 4, "smallest_cell": 10,
        "concepts": [*(known[name] for name in QUESTION_TERMS), disease],
        "analyses": [{"name": "odds-ratios", "regression": regression}],
    }  # fmt: skip


def _network(method: Method, latent: int) -> dict[str, Any]:
    if isinstance(method.procedure, ColumnByColumn):
        return {"name": "columns", "hidden": [4 * latent, 2 * latent, latent], "lateral": 0.5}
    if isinstance(method.federated, Parts) and Part.COMMON in method.federated.parts:
        return {"name": "parallel", "common": [latent], "unique": [latent]}
    return {"name": "global-layers-network", "latent": latent, "gate": False, "input_normalisation": False}


def _image_network(method: Method, image: ImageSize, latent: int) -> dict[str, Any]:
    """Return a convolutional network of three blocks and two linear layers, as in the paper of PLayer-FL."""
    read = {"image": image.model_dump(mode="json")}
    blocks = [latent // 4, latent // 2, latent // 2]
    has_normalisation = isinstance(method.federated, AllButNormalisation)
    hidden = {"blocks": blocks, "hidden": [latent // 2]}
    return read | hidden | {"name": "convolutional", "normalisation": has_normalisation}


def _columns(hospitals: Sequence[HospitalData], share: float, *, is_masked: bool) -> dict[str, Any]:  # Any: YAML
    """Return each hospital's first encoded columns, and the sites of each column that not all record.

    Under masking, if fewer than three of three or more hospitals record a column, the column is not used, because its
    sum would cover too few sites. If no column remains, all are kept, and the plan is refused with the reason.
    """
    own = {hospital.name: read_contract(hospital.contract).encoded_columns for hospital in hospitals}
    chosen = (columns[: max(1, round(share * len(columns)))] for columns in own.values())
    recorded = {
        name: sorted(site for site, columns in own.items() if name in columns)
        for name in dict.fromkeys(name for columns in chosen for name in columns)
    }
    fewest = min(_FEWEST_SITES, len(hospitals)) if is_masked else 1
    used = [name for name, sites in recorded.items() if len(sites) >= fewest] or list(recorded)
    columns: list[Any] = [
        name if len(sites) == len(hospitals) else {"name": name, "recorded_by": sites if name in used else []}
        for name, sites in recorded.items()
    ]
    return {"columns": columns}
