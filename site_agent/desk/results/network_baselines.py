"""Trains two models for comparison after a study: on this site's rows alone, and among copies of this site (placebo).

`train_alone` trains the plan's network on this site's rows only. Network, rows, number of steps, optimiser and
fine-tuning are those of the plan; every parameter is private. If the plan chooses the checkpoint over all sites, here
this site's own loss chooses it.

`train_placebo` federates with copies of this site. It shows the effect of averaging alone. Method, schedule, number of
sites, server rule and the arithmetic of sums are those of the plan. Each copy has this site's rows and its own random
draws. A method has no placebo if its rounds depend on measurements of many sites (which layers to share), because all
copies would have the same measurements. Private training has no placebo either.

Nothing of these two models is sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from protos.numbers.fixed_point import FixedPoint, NotFinite
from protos.numbers.round_sums import Sums
from protos.plan.exchange import Exchange, Exchanges, is_measured
from protos.plan.ingredients import Method, Nothing, SensitivePrefix
from protos.plan.manifest import ROWS, Manifest, largest_weight
from protos.plan.network_plan import NetworkPlan
from protos.plan.server_rules import apply_rule, begin_rule
from protos.wire.messages import Stage
from site_agent.trainer.choice import Choice
from site_agent.trainer.failures import TrainingDiverged
from site_agent.trainer.requests import Answer, Asked
from site_agent.trainer.site_network import begin_training, rows_of
from site_agent.trainer.study import Outcome, Study, conclude

Float32: TypeAlias = npt.NDArray[np.float32]


def has_placebo(plan: NetworkPlan) -> bool:
    """Return whether the method of a plan can run with copies of one site, as the placebo needs."""
    method = plan.ingredients
    return not isinstance(method.federated, SensitivePrefix | Nothing) and len(plan.sites) > 1 and plan.privacy is None


def train_placebo(study: Study) -> Outcome | None:
    """Train all rounds of the plan among copies of this site (the placebo). Return the model that would be chosen.

    Returns:
        None if the method has no placebo, or if training diverged.
    """
    if not has_placebo(study.plan):
        return None
    checkpoint = "latest" if study.plan.checkpoint == "latest" else "local"
    # Nothing is sent here. With masking, the study would refuse columns that other sites record.
    unmasked = study.plan.masking.model_copy(update={"required": False, "bits": 32})
    plan = study.plan.model_copy(update={"masking": unmasked, "checkpoint": checkpoint})
    names = [study.site, *(f"{study.site} copy {number}" for number in range(1, len(plan.sites)))]
    members = [
        Study(
            plan,
            study.own,
            seeds=own,
            user_module=study.user_module,
            inputs=study.inputs,
            starts=study.networks.starts,
            device=study.networks.device,
        )
        for own in [replace(study.seeds, site=name) for name in names]
    ]
    manifest = members[0].manifest
    parameters = manifest.initial_parameters(plan.seed)
    try:
        _train_together(plan, manifest, members, parameters)
        members[0].close(Asked(round=plan.rounds, stage=None), parameters)
        return members[0].conclude()
    except (NotFinite, TrainingDiverged):
        return None  # as in a run, where the gate refuses such an update


def _train_together(plan: NetworkPlan, manifest: Manifest, members: list[Study], parameters: Float32) -> None:
    """Train copies of one site; `parameters`, float32, are changed in place. Raise NotFinite if one diverges."""
    exchanges, fixed_point = Exchanges(plan, manifest), FixedPoint(plan.masking.clipping_range, len(plan.sites))
    state = begin_rule(plan.ingredients.server_rule, manifest.parameters)
    for number in range(plan.schedule.rounds):
        exchange = exchanges.of(number, Stage.TRAINING, b"")
        controls = [state["control"].astype(np.float32)] if exchange.has_controls else []
        sent = np.concatenate([parameters, *controls])
        answers = [member.train(Asked(round=number), sent) for member in members]
        sums = _sum(exchange, answers, members[0].rows, fixed_point, largest_weight(plan))
        apply_rule(plan, manifest, sums, parameters, state)


def _sum(exchange: Exchange, answers: list[Answer], rows: int, fixed_point: FixedPoint, largest: int) -> Sums:
    """Return the sum of the contributions of all copies, computed in integers as in a run."""
    weight, total = rows / largest if rows else 1.0, np.zeros(exchange.updates, np.int32)
    encoded = np.empty_like(total)
    for answer in answers:
        fixed_point.encode(np.asarray(answer.updates, np.float32), weight, encoded)
        np.add(total, encoded, out=total)  # wraps on purpose: modulo 2**32
    names = [scalar.name for scalar in exchange.scalars if scalar.name != ROWS]
    scalars = {name: sum(answer.scalars[place] for answer in answers) for place, name in enumerate(names)}
    return Sums(
        exchange=exchange,
        contributors=len(answers),
        updates=total,
        scalars=scalars | ({ROWS: rows * len(answers)} if rows else {}),
    )


def train_alone(study: Study) -> Outcome | None:
    """Train the plan's network on this site's rows alone. Measure the network as often as the federated network.

    Only the fine-tuning and the equal starts of the plan's method are kept. With the method `local` the result equals
    the study's, to the bit. Epochs in which FedRep trains only the head are not part of its budget.

    Returns:
        None if training diverged.
    """
    plan, networks, dataset = study.plan, study.networks, study.own
    if study.networks.common is not None:
        # This network treats common columns separately, even if no other site has these columns.
        dataset = study.dataset
    networks = replace(networks, columns=len(dataset.columns))
    rows, seeds = rows_of(dataset), study.seeds
    training = begin_training(networks, Method(federated=Nothing()), (), rows, seeds)
    choice = Choice("latest" if plan.checkpoint == "latest" else "local")
    for number in range(plan.has_probe, plan.has_probe + plan.schedule.rounds + 1):
        if is_measured(plan, number) or number == plan.has_probe + plan.schedule.rounds:
            choice.consider(number, float(training.validation_losses()), training.local.evaluated())
        if number < plan.has_probe + plan.schedule.rounds:
            training.local.train_round(plan.schedule.steps_per_round, torch.empty(0))
    try:
        return conclude(plan, training, choice)
    except TrainingDiverged:
        return None  # the report shows that this baseline diverged
