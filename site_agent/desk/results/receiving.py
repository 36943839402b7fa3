"""Saves the other hospitals' model at a site that only receives the model and has no outcomes in its table.

Such a site sends no number. Its table has no outcome, or its outcome is not read. The rules:

* the announced sums are checked as at every site, and coefficients are computed here;
* the score has the plan's coefficients; its intercept gives this site's patients the declared prevalence, or the
  other sites' share if the hospital declares none;
* if the others' score helps none of the contributing sites, there is no model;
* nothing was tested here, so the report has no metric.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import structlog

from protos.numbers.newton_sums import OutOfBound
from protos.plan.noisy_results import noisy_fit
from protos.plan.plan import Plan
from protos.plan.prior_plan import OneOfClasses, PriorPlan
from protos.plan.prior_sums import AnnouncedSums, Standard
from protos.wire.messages import MalformedMessage
from site_agent.desk.results.joined_model import JoinedModel
from site_agent.desk.results.saved_model import SavedModel, run_facts, save_model
from site_agent.hospital import Hospital
from site_agent.trainer.data.column_profile import profile_of
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.preprocessing import Preprocessing, Scale, fit
from site_agent.trainer.data.tables import Table
from site_agent.trainer.disk import Json, write_whole
from site_agent.trainer.fitted_models import Forest, Lines
from site_agent.trainer.prior.concept_columns import ConceptEncoding, Mapped, values_of
from site_agent.trainer.prior.prior_study import read_without_outcomes, require_receivable
from site_agent.trainer.prior.site_sums import profiled_intercept

Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Received:
    """The other sites' coefficients, computed from the announced sums of a whole run.

    Attributes:
        standard: the standardisation of the columns.
        slopes, errors: of all contributing sites, float64 of shape (outputs, columns).
        guard: as in KnownByOthers.
        rounds: the number of completed Newton rounds.
    """

    standard: Standard
    slopes: Float64
    errors: Float64
    guard: float | None
    rounds: int

    @property
    def is_useful(self) -> bool:
        """Return whether the model improved predictions at the contributing sites, or True if not measured."""
        return self.guard is None or self.guard > 0


def receive(hospital: Hospital, plan: Plan, run: str, rounds: int, vector: Float32) -> None:
    """Save and report the other sites' model. Raise MalformedMessage at impossible sums, else OperatorError."""
    mapped = require_receivable(hospital, plan)
    assert isinstance(plan, PriorPlan)  # a plan with receivers has federated-prior
    found, table = _received(plan, rounds, vector), read_without_outcomes(hospital)
    facts = _facts(hospital, plan, run, table, found, mapped)
    if found.is_useful:
        save_model(hospital.state_path, run, _model(hospital, plan, table, found, mapped))
    write_whole(hospital.state_path / "reports" / f"{run}.json", json.dumps(facts, indent=2, allow_nan=False).encode())
    structlog.get_logger().info("model_received", run=run, rows=table.rows)


def _received(prior: PriorPlan, rounds: int, vector: Float32) -> _Received:
    try:
        sums = AnnouncedSums(prior, vector)
        if prior.private is not None:
            slopes, errors = noisy_fit(prior.private, sums.terms, prior.ridge)
            return _Received(standard=sums.standard, slopes=slopes, errors=errors, guard=None, rounds=0)
        made = rounds - 2  # one round is for the statistics, and one round is for the guard
        if not 0 < made <= prior.training_rounds:
            raise MalformedMessage("a result after another number of rounds")
        slopes = sums.coefficients(made)[-1]
        errors = sums.newton(made).standard_errors(prior.ridge)
        return _Received(standard=sums.standard, slopes=slopes, errors=errors, guard=sums.guard, rounds=made)
    except OutOfBound as refused:
        raise MalformedMessage(str(refused)) from refused


def _model(
    hospital: Hospital, prior: PriorPlan, table: Table, found: _Received, mapped: tuple[Mapped, ...]
) -> SavedModel:
    """Return the other sites' score as a joined model in which all other weights are 0."""
    contract, rows = table.contract, np.arange(table.rows, dtype=np.int64)
    preprocessing = _preprocessing(prior, contract, table, found.standard)
    slopes = found.slopes
    if isinstance(prior.outcome, OneOfClasses):
        slopes = slopes[[prior.outcome.classes.index(name) for name in contract.target.classes]]
    concepts = ConceptEncoding.of(tuple(column.name for column in prior.columns), mapped, found.standard)
    design = found.standard.applied(values_of(mapped, table.features, table.rows))
    lines = design.astype(np.float32).astype(np.float64) @ slopes.T
    starts = np.array([-float(line.mean()) for line in lines.T])
    if not prior.is_number:
        # The intercept with which the mean probability equals the share of patients.
        pairs = zip(lines.T, _shares(hospital, prior, contract, found.standard).clip(1e-3, 1.0 - 1e-3), strict=True)
        starts = np.array([profiled_intercept(line, np.full(len(line), one), is_number=False) for line, one in pairs])
    outputs, columns = len(slopes), len(preprocessing.columns)
    return SavedModel(
        plan=prior,
        preprocessing=preprocessing,
        values={},
        joined=JoinedModel(
            task=contract.target.task,
            own=Lines(slopes=np.zeros((outputs, columns)), starts=np.zeros(outputs)),
            forest=_no_forest(outputs),
            others=Lines(slopes=slopes, starts=starts),
            weights=np.array([0.0, 0.0, 1.0]),
        ),
        concepts=concepts,
        profile=profile_of(contract, table, rows),
    )


def _preprocessing(prior: PriorPlan, contract: Contract, table: Table, standard: Standard) -> Preprocessing:
    fitted = fit(contract, table, np.arange(table.rows, dtype=np.int64))
    outcome = prior.outcome
    if outcome.task != "regression":
        return fitted
    mean = outcome.low + outcome.width * float(standard.outcome_means[0])
    scale = Scale(mean=mean, deviation=outcome.width * standard.outcome_deviation)
    return fitted.model_copy(update={"target_scale": scale})


def _shares(hospital: Hospital, prior: PriorPlan, contract: Contract, standard: Standard) -> Float64:
    outcome, own = prior.outcome, hospital.data.prevalence
    if isinstance(outcome, OneOfClasses):
        return standard.outcome_means[[outcome.classes.index(name) for name in contract.target.classes]]
    return standard.outcome_means if own is None else np.array([own])


def _no_forest(outputs: int) -> Forest:
    return Forest(
        roots=np.zeros(1, np.int32),
        columns=np.zeros(1, np.int32),
        thresholds=np.array([np.inf]),
        children=np.zeros((1, 2), np.int32),
        values=np.full((1, outputs), 1.0 / (outputs + 1.0)),
    )


def _facts(
    hospital: Hospital, plan: PriorPlan, run: str, table: Table, found: _Received, mapped: tuple[Mapped, ...]
) -> dict[str, Json]:
    own = hospital.data.prevalence
    return run_facts(hospital, plan, run) | {
        "task": table.contract.target.task,
        "rows": {"table": table.rows},
        "receiving": {
            "sentence": _sentence(plan, found),
            "has_model": found.is_useful,
            "prevalence": None if plan.is_number else own,
            "prevalence_is_of": "the other sites" if own is None else "hospital.yaml",
            "guard": found.guard,
            "newton_rounds": found.rounds,
            "coefficients": [*coefficient_facts(plan, found.standard, mapped, found.slopes, found.errors)],
        },
    }


def _sentence(plan: Plan, found: _Received) -> str:
    rows = "" if found.standard.rows is None else f" with {found.standard.rows} training rows"
    of_whom = f"{len(plan.site_names)} other hospitals{rows}"
    if not found.is_useful:
        return (
            f"No model was saved: the score of {of_whom} did not improve their own predictions, so it is not used at "
            "this site."
        )
    return (
        f"This site only received a model: the score of {of_whom}. This site's patients had no influence on the model, "
        "and the model was not tested at this site."
    )


def coefficient_facts(
    prior: PriorPlan, standard: Standard, mapped: Sequence[Mapped], slopes: Float64, errors: Float64
) -> list[dict[str, Json]]:
    """Return the report's facts about coefficients and their standard errors, both of shape (outputs, columns)."""
    return [
        {
            "output": output,
            "column": column.name,
            "is_used": bool(standard.is_used[place]),
            "is_recorded_here": mapped[place] is not None,
            "all_sites": float(slopes[number, place]),
            "standard_error": float(errors[number, place]),
        }
        for number, output in enumerate(prior.outputs)
        for place, column in enumerate(prior.columns)
    ]
