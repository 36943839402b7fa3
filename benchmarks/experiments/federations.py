"""Runs a federation in one process: the deployed code of all sites and of the coordinator, without sockets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from global_layers.one_process import Collection, run_rounds
from protos.plan.plan import Plan
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Outcome, Study


def federate(
    plan: Plan, sites: Mapping[str, Dataset], user_module: Path | None = None
) -> tuple[Collection, dict[str, Outcome]]:
    """Run all rounds of a plan. Return the chosen model of every site.

    Args:
        plan: lists exactly these sites; without masking.
        sites: each one's encoded rows.
        user_module: the file of the sites' own network, where the plan lists tensors.

    Raises:
        OperatorError: the plan does not fit a site.
    """
    studies = {
        name: Study(plan, dataset, seeds=Seeds.published(plan.seed, name), user_module=user_module)
        for name, dataset in sites.items()
    }
    collection = run_rounds(plan, studies)
    return collection, {name: study.conclude() for name, study in studies.items()}
