"""The required result of a masked or unmasked run, by plain integers, and the content of its record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from coordinator.rounds.course import Course, follow, layers_at, layers_of_result
from protos.numbers.round_sums import Sums
from protos.numbers.short_integers import pack_exponents
from protos.plan.architecture import TensorSpec
from protos.plan.exchange import Exchange, Exchanges, stage_at
from protos.plan.manifest import ROWS, Manifest, largest_weight, manifest_of
from protos.plan.plan import Plan
from protos.plan.server_rules import apply_rule, begin_rule
from protos.plan.short_wire import first_exponents, next_exponents
from protos.wire.messages import Stage
from site_agent.trainer.requests import Asked
from tests.federation import Federation, Vector, encoded, measured_by, rows_of, short, update_of

SCHEDULES = ("every-batch", "every-epoch", "every-round")


def unmasked(plan: Plan) -> Plan:
    """The same plan without masking."""
    return plan.model_copy(update={"masking": plan.masking.model_copy(update={"required": False})})


def reference(plan: Plan, contributors: Callable[[int], str]) -> Vector:
    """The required result of a run, without any message: plain integers in the plainest order."""
    manifest = manifest_of(plan)
    exchanges, course = Exchanges(plan, manifest), Course(exponents=first_exponents(plan, manifest))
    parameters = manifest.initial_parameters(plan.seed)
    state = begin_rule(plan.ingredients.server_rule, parameters.size)
    number = 0
    while (stage := stage_at(plan, number, course.training_rounds)) is not None:
        exchange = exchanges.of(number, stage, layers_at(plan, course, number))
        sums = summed(plan, exchange, number, contributors(number), parameters, course)
        if stage is Stage.TRAINING:
            apply_rule(plan, manifest, sums, parameters, state)
            exponents = next_exponents(plan, manifest, sums)
            course = replace(course, exponents=exponents, summed_rows=sums.scalars.get(ROWS, 0) if exponents else 0)
        course = follow(plan, course, number, sums)
        number += 1
    return _picked(manifest, exchanges.result(layers_of_result(course)), parameters)


def summed(plan: Plan, exchange: Exchange, number: int, sites: str, parameters: Vector, course: Course) -> Sums:
    """The sums of one round over these sites."""
    received = _picked(manifest_of(plan), exchange.up, parameters)
    totals, updates = dict.fromkeys((scalar.name for scalar in exchange.scalars), 0), []
    for site in sites:
        rows = rows_of(site) / largest_weight(plan) if plan.weighting.name == "rows" else 1.0
        update = update_of(site, number, received)
        asked = Asked(round=number, layers=exchange.layers, scales=pack_exponents(course.exponents))
        is_short = plan.bits != 32 and exchange.up
        updates.append(short(plan, site, update, asked, rows) if is_short else encoded(plan, update, rows))
        for scalar, value in zip(exchange.scalars, measured_by(site, number, exchange).values(), strict=True):
            totals[scalar.name] += value
    facts = {"updates": np.sum(updates, axis=0, dtype=np.int32), "scalars": totals, "exponents": course.exponents}
    return Sums(exchange=exchange, contributors=len(sites), **facts)


def _picked(manifest: Manifest, tensors: tuple[TensorSpec, ...], parameters: Vector) -> Vector:
    views = manifest.views(parameters)
    return np.concatenate([np.empty(0, np.float32), *(views[tensor.name].ravel() for tensor in tensors)])


def decisions(network: Federation) -> dict[str, Any]:
    """What the record says that the sums have decided."""
    (path,) = (network.directory / "coordinator" / "runs").glob("*/record.json")
    record = json.loads(path.read_text())
    keys = ("chosen_layers", "sensitivities", "validation_curve", "best_round", "training_rounds")
    return {key: record[key] for key in keys}
