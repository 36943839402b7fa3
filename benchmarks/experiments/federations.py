"""A federation in one process: the sites' own studies and the coordinator's own run, without sockets."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks.experiments.contributions import Collection, Part
from protos.plan.exchange import stage_at
from protos.plan.plan import Plan
from protos.wire.messages import Stage
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Asked, Outcome, Study


def federate(
    plan: Plan, sites: Mapping[str, Dataset], own_module: Path | None = None
) -> tuple[Collection, dict[str, Outcome]]:
    """All rounds of a plan, and every site's chosen model.

    Args:
        plan: lists exactly these sites; without masking, and its gain private.
        sites: each one's encoded rows.
        own_module: the file of the sites' own network, where the plan lists tensors.

    Raises:
        OperatorError: the plan does not fit a site.
    """
    collection = Collection(plan)
    studies = {
        name: Study(plan, dataset, seeds=Seeds.published(plan.seed, name), own_module=own_module)
        for name, dataset in sites.items()
    }
    run = collection.run
    for number in count():
        if stage_at(plan, number, run.course.training_rounds) is None:
            break
        offered = run.offered(number)
        offer = offered.offer
        asked = Asked(
            round=number,
            stage=offer.stage,
            layers=offer.layers,
            best_round=offer.best_round,
            returned_to=offer.returned_to,
        )
        collection.begin(number)
        for name, study in studies.items():
            answer = study.train(asked, np.array(offered.values))
            rows = study.rows if offer.stage is Stage.TRAINING else 0
            collection.add(name, number, Part(changes=answer.changes, scalars=answer.scalars, rows=rows))
        collection.close(number)
    finish, values = run.result()
    asked = Asked(
        round=finish.round,
        stage=Stage.REPORT,
        layers=finish.layers,
        best_round=finish.best_round,
        returned_to=finish.returned_to,
    )
    outcomes = {}
    for name, study in studies.items():
        study.close(asked, np.array(values))
        outcomes[name] = study.conclude()
    return collection, outcomes
