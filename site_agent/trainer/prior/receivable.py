"""Checks a site that only receives a model: its table has no outcome, or the outcome is not read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protos.errors import ConfigurationError, OperatorError
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from site_agent.hospital import Hospital
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.tables import FEWEST_ROWS, Table, survey_new_rows
from site_agent.trainer.prior.concept_columns import Mapped, mapped_columns
from site_agent.trainer.prior.prior_study import outcomes_of


def read_without_outcomes(hospital: Hospital) -> Table:
    """Read the table without its outcome. Raise OperatorError if a row does not fit, or there are too few."""
    survey = survey_new_rows(Path(hospital.data.table), read_contract(Path(hospital.data.contract)))
    if survey.mistakes:
        refuse([mistake.line for mistake in survey.mistakes])
    if survey.table.rows < FEWEST_ROWS:
        refuse([f"the table has {survey.table.rows} rows, and at least {FEWEST_ROWS} are needed"])
    return survey.table


def require_receivable(hospital: Hospital, plan: Plan) -> tuple[Mapped, ...]:
    """Return for each concept this site's column. Raise OperatorError if it cannot use the resulting model."""
    assert isinstance(plan, PriorPlan)  # a plan with receivers has federated-prior
    contract = read_without_outcomes(hospital).contract
    outcomes_of(plan, contract, np.empty(0))
    mapped = mapped_columns(plan.concepts, contract, None)
    if all(one is None for one in mapped):
        raise _unusable(
            "No column of this site's contract records a concept of the plan.",
            "Add the key `concept` to columns in the contract.",
        )
    if plan.privacy is not None and hospital.data.prevalence is None:
        what = (
            "This plan does not announce the fraction of patients with the outcome, because the plan has the key "
            "`privacy`."
        )
        raise _unusable(what, "Set `prevalence` under data in hospital.yaml to this fraction.")
    return mapped


def _unusable(what: str, remedy: str) -> OperatorError:
    return ConfigurationError(
        what=what, consequence="Nothing was sent, and this site did not receive a model.", remedy=remedy
    )
