"""Collects the results of a rehearsal for every site and method, and prints them as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from protos.statistics.printed_results import named
from quickstart.federation import Rehearsal

BEST_LOCAL: Final = "best-local"
PRIOR: Final = "federated-prior"
SILOED: Final = "siloed"


def collect(rehearsal: Rehearsal) -> dict[str, Any]:
    """Return every site's test metrics for each method, and the digest of the shared parameters.

    `siloed` is the last network method's network, trained by the site alone with the same budget. `best-local` is the
    regression, forest or boosting that the site would have chosen on its training rows alone. If federated-prior ran,
    `others_part_auroc` is the gain from the other hospitals' score: the difference to the same model without it.
    `difference_to_best_local` is the last method's AUROC minus the best local model's, with the 95% interval over
    patients. `verdict` is the report's. It reports a gain only if the model also beats the placebo.
    """
    records = [json.loads(path.read_text()) for path in (rehearsal.folder / "coordinator/runs").glob("*/record.json")]
    by_study = {record["study"]: record for record in records}
    by_method = {study.label: by_study[study.name] for study in rehearsal.studies}
    last = rehearsal.studies[-1].label
    main_record = by_method[last]
    reports = {
        hospital.name: {
            method: json.loads(
                (rehearsal.folder / hospital.name / "state/reports" / f"{record['run']}.json").read_text()
            )
            for method, record in by_method.items()
        }
        for hospital in rehearsal.hospitals
    }
    return {
        "seed": rehearsal.seed,
        "masked": rehearsal.is_masked,
        "rounds": main_record["rounds_made"],
        "shared_parameters_sha256": main_record["shared_parameters_sha256"],
        "runs": {method: record["shared_parameters_sha256"] for method, record in by_method.items()},
        "sites": {site: _of_site(by_method, last) for site, by_method in reports.items()},
    }


def _of_site(reports: dict[str, Any], last: str) -> dict[str, Any]:
    """Return the metrics of one site. `reports` maps each method to its report."""
    networks = [method for method in reports if method != PRIOR]
    report, best = reports[last], reports[last]["best_local"]
    alone = reports[networks[-1] if networks else last][SILOED]["metrics"]
    found: dict[str, Any] = {SILOED: alone}
    found |= {method: each["federated"]["metrics"] for method, each in reports.items()}
    found[BEST_LOCAL] = {"model": best} | report["simple_models"][best]["metrics"]
    difference = report["differences"][best].get("auroc")
    found["difference_to_best_local"] = difference
    found["verdict"] = report["gain"]["verdict"]
    if PRIOR in reports:
        without = reports[PRIOR]["differences"][SILOED].get("auroc")
        found["others_part_auroc"] = None if without is None else without["difference"]
        found["weights"] = reports[PRIOR]["prior"]["weights"]
    return found


def table_of(figures: dict[str, Any]) -> Table:
    """Return a table with one row for each site: the best local model, every method, and the last method's gain."""
    methods = list(figures["runs"])
    has_prior = PRIOR in methods
    # The table must fit a terminal of 80 columns, so long names break at their hyphens.
    names = ["best\nlocal", *(method.replace("-", "-\n") for method in methods), "gain, points\n[95% interval]"]
    columns = [Column(name, no_wrap=True) for name in ("hospital", *names, *(["others\nbrought"] if has_prior else []))]
    table = Table(
        *columns,
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title="AUROC on each hospital's own test patients",
        caption=f"gain: {methods[-1]} minus the best local model",
    )
    for site, found in figures["sites"].items():
        cells = [_number(found[BEST_LOCAL]), *(_number(found[method]) for method in methods), _signed(found)]
        table.add_row(site, *cells, *([_points(found["others_part_auroc"])] if has_prior else []))
    return table


def sentences_of(figures: dict[str, Any]) -> Iterator[str]:
    """Yield for each hospital one sentence whether to join, by the last method's result on this test set."""
    method = list(figures["runs"])[-1]
    for site, found in figures["sites"].items():
        difference = found["difference_to_best_local"]
        if difference is None:
            yield f"{site}: AUROC cannot be measured on this table."
            continue
        low, high = (100 * end for end in difference["interval"])
        interval = f"95% interval {low:+.1f} to {high:+.1f} points"
        if low > 0 and found["verdict"] != "gained":
            better = f"{method} is better than the best local model ({interval})"
            yield f"{site}: {better}. It is not shown that other hospitals' patients brought this."
        elif low > 0:
            yield f"{site}: join. {method} is better than the best local model ({interval})."
        elif high < 0:
            yield f"{site}: do not join for this model. {method} is worse than the best local model ({interval})."
        else:
            few = f"{site}: no clear gain on these few test patients ({interval})"
            yield f"{few}. More patients could show if there is one."


def odds_ratios(rehearsal: Rehearsal, site: str) -> dict[str, dict[str, list[float]]]:
    """Return for each term the odds ratio with its 95% interval, of all hospitals together and of one alone."""
    (folder,) = (rehearsal.folder / site / "state/statistics").iterdir()
    (result,) = json.loads((folder / "results.json").read_text())["analyses"]
    alone = json.loads((folder / "own.json").read_text())["estimates"][result["name"]]
    return {
        term["label"]: {
            kind: [math.exp(one[end]) for end in ("estimate", "low", "high")]
            for kind, one in (("all", term), (site, alone[term["term"]]))
        }
        for term in named(result["terms"])
    }


def odds_table(found: dict[str, dict[str, list[float]]], site: str) -> Table:
    """Return a table of these odds ratios, and by which factor the interval of all is narrower (of its logarithm)."""
    names = ("odds of heart disease", "four hospitals", f"{site} alone", "narrower")
    table = Table(
        *(Column(name, no_wrap=True) for name in names),
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title="What no hospital could know alone",
    )
    for term, one in found.items():
        widths = [math.log(high / low) for _, low, high in (one["all"], one[site])]
        cells = ["{:.2f} [{:.2f}, {:.2f}]".format(*one[kind]) for kind in ("all", site)]
        table.add_row(term, *cells, f"{widths[1] / widths[0]:.1f}×")
    return table


def _number(metrics: dict[str, Any]) -> str:
    return "-" if metrics["auroc"] is None else f"{metrics['auroc']:.3f}"


def _signed(found: dict[str, Any]) -> str:
    difference = found["difference_to_best_local"]
    if difference is None:
        return "-"
    low, high = difference["interval"]
    return f"{100 * difference['difference']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _points(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f}"
