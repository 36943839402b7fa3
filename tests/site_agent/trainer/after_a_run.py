"""A site after a study: the start of the tests of report, predictions, exports and monitoring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from site_agent.desk.results.run_report import make_report
from site_agent.hospital import Hospital
from tests.mask_images import U_NET, mask_contract, put_table
from tests.site_agent.trainer.sites import Table, at_the_end, make_plan, make_site, prepare, run_rounds

RUN = "law-1"


def site_after_run(
    folder: Path, *, table: Table = "breast-cancer", columns: slice = slice(0, 6), plan: Any = None, **training: object
) -> Hospital:
    """A hospital with model, report and scores of a federation with itself alone."""
    made = plan or make_plan()
    hospital, study, preprocessing = prepare(make_site(folder, table=table, columns=columns, **training), made)
    study.close(at_the_end(made), run_rounds(made, [study]))
    make_report(hospital, study, preprocessing, RUN)
    return hospital


def site_with_masks(folder: Path) -> Hospital:
    """The same of a U-Net on real images with masks, after twelve epochs, with the report's usual comparisons."""
    config = make_site(folder, simple_models=True)
    put_table(folder / "table.csv", folder, list(range(200)))
    (folder / "contract.yaml").write_text(yaml.safe_dump(mask_contract()))
    schedule = {"aggregate": "every-epoch", "epochs": 12, "batches_per_epoch": 6}
    optimiser = {"name": "adamw", "learning_rate": 0.03}
    plan = make_plan(method={"name": "fedavg"}, architecture=U_NET, schedule=schedule, optimiser=optimiser)
    hospital, study, preprocessing = prepare(config, plan)
    study.close(at_the_end(plan), run_rounds(plan, [study]))
    make_report(hospital, study, preprocessing, RUN)
    return hospital
