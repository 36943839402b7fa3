"""The site's own opponent: the plan's network trained on this site's rows and by nobody else.

Same network, rows, expert, number of steps, optimiser and fine-tuning; every number is private. The checkpoint is
chosen as in the plan, by this site's own loss where the plan chooses over all sites.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from protos.plan.exchange import is_measured
from protos.plan.ingredients import Method, Nothing
from site_agent.trainer.choice import Choice
from site_agent.trainer.data.dataset import input_columns
from site_agent.trainer.failures import TrainingDiverged
from site_agent.trainer.site_training import begin_training, rows_of
from site_agent.trainer.soft_target_training import added_columns
from site_agent.trainer.study import Outcome, Study, conclude


def train_alone(study: Study) -> Outcome | None:
    """The same network on this site's own columns, as often considered, and nobody else.

    Of the plan's method only the fine-tuning and what starts equal are kept: for method local it is the study
    itself, to the bit. Epochs that FedRep spends on the head alone are not in its budget.

    Returns:
        None where training diverged.
    """
    plan, networks, dataset = study.plan, study.networks, study.own
    if input_columns(plan, dataset.columns)[1] is not None:
        dataset = study.dataset  # the network tells common columns from others, also where nobody shares them
    networks = replace(networks, columns=len(dataset.columns) + added_columns(plan, dataset.outputs))
    rows, seeds = rows_of(dataset, study.advice), study.seeds
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
        return None  # an opponent that cannot stand is a result of the comparison, not a failure
