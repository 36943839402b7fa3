"""What a rehearsal came to: the figures of every site and method, and the table a person reads."""

from __future__ import annotations

import json
from typing import Any

from rich.table import Table

from quickstart.federation import Rehearsal


def collect(rehearsal: Rehearsal) -> dict[str, Any]:
    """Every site's test metrics per method, and the digest of the shared parameters.

    `siloed` is the last method's network, trained by the site alone with the same budget.
    """
    records = [json.loads(path.read_text()) for path in (rehearsal.folder / "coordinator/runs").glob("*/record.json")]
    by_study = {record["study"]: record for record in records}
    by_method = {study.label: by_study[study.name] for study in rehearsal.studies}
    last = rehearsal.studies[-1].label
    main_record = by_method[last]
    sites: dict[str, Any] = {}
    for hospital in rehearsal.hospitals:
        folder = rehearsal.folder / hospital.name / "state/reports"
        reports = {
            method: json.loads((folder / f"{record['run']}.json").read_text()) for method, record in by_method.items()
        }
        alone = reports[last]["siloed"]["metrics"]
        together = {method: report["federated"]["metrics"] for method, report in reports.items()}
        sites[hospital.name] = {"siloed": alone} | together
    return {
        "seed": rehearsal.seed,
        "masked": rehearsal.is_masked,
        "rounds": main_record["rounds_made"],
        "shared_parameters_sha256": main_record["shared_parameters_sha256"],
        "runs": {method: record["shared_parameters_sha256"] for method, record in by_method.items()},
        "sites": sites,
    }


def table_of(figures: dict[str, Any]) -> Table:
    """One row per site: AUROC alone and with each method, and what the last method gained."""
    names = list(next(iter(figures["sites"].values())))
    table = Table(
        "site", *(f"{name} AUROC" for name in names), f"gain of {names[-1]}", title="On each site's own test rows"
    )
    for site, by_method in figures["sites"].items():
        values = [by_method[name]["auroc"] for name in names]
        known = values[0] is not None and values[-1] is not None
        gain = f"{values[-1] - values[0]:+.3f}" if known else "-"
        table.add_row(site, *("-" if value is None else f"{value:.3f}" for value in values), gain)
    return table
