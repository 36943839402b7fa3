"""Runs a federation in one process: the deployed code of all sites and of the coordinator, without sockets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from global_layers.one_process import Collection, run_rounds
from protos.plan.plan import Plan
from protos.plan.sweep import chosen_of
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Outcome, Study


def federate(
    plan: Plan, sites: Mapping[str, Dataset], own_module: Path | None = None
) -> tuple[Collection, dict[str, Outcome]]:
    """Run all rounds of a plan. Return the chosen model of every site.

    Args:
        plan: lists exactly these sites; without masking, and its gain private.
        sites: each one's encoded rows.
        own_module: the file of the sites' own network, where the plan lists tensors.

    Raises:
        OperatorError: the plan does not fit a site.
    """
    studies = {
        name: Study(plan, dataset, seeds=Seeds.published(plan.seed, name), own_module=own_module)
        for name, dataset in sites.items()
    }
    collection = run_rounds(plan, studies)
    return collection, {name: study.conclude() for name, study in studies.items()}


def federate_sweep(
    plan: Plan, sites: Mapping[str, Dataset], own_module: Path | None = None
) -> tuple[Plan, dict[str, Outcome]]:
    """Run all alternatives of a plan. Return the alternative with the lowest validation loss over all sites.

    Args:
        plan: one of the alternatives; see `federate`.
        sites: each one's encoded rows.
        own_module: the file of the sites' own network, where the plan lists tensors.

    Raises:
        OperatorError: the plan does not fit a site.
    """
    runs = [(each, *federate(each, sites, own_module)) for each in plan.alternatives]
    bests = [collection.run.course.best for _, collection, _ in runs]
    chosen, _, outcomes = runs[chosen_of([math.inf if best is None else best[1] for best in bests])]
    return chosen, outcomes
