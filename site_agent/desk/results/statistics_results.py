"""Writes the results of a statistics plan at a hospital: the numbers that every site and the coordinator have."""

from __future__ import annotations

import json
from typing import Final

import structlog

from host.statistics_page import statistics_page
from protos.statistics.printed_results import RESULTS_CSV, RESULTS_HTML, RESULTS_JSON, results_as_csv, results_as_json
from site_agent.hospital import Hospital
from site_agent.trainer.disk import write_whole
from site_agent.trainer.statistics.statistics_study import StatisticsStudy

STATISTICS: Final = "statistics"  # the folder of all runs' results in the state folder
OWN_JSON: Final = "own.json"  # estimates of this hospital alone, and sentences for its people


def write_results(hospital: Hospital, study: StatisticsStudy, run: str) -> None:
    """Write what each analysis prints, and the page. Raises UnavailableError: the disk cannot be written.

    The page also has estimates of this hospital alone, why it did not answer an analysis, values that ranges
    cut, and numbers that may be in another unit.
    """
    folder, results, own = hospital.state_path / STATISTICS / run, study.results(), study.own()
    write_whole(folder / RESULTS_CSV, results_as_csv(results).encode())
    content = results_as_json(study.plan, results)
    write_whole(folder / RESULTS_JSON, content)
    told = [*study.cut, *study.other_units()]
    for name, common in ((one["name"], one["refused"]) for one in results if "refused" in one):
        why = study.reasons.get(name, common)
        reason = f"This hospital did not answer {name}. {why}"
        could = f"This hospital could answer {name}: another one could not, or all together give no result."
        told.append(could if why == common else reason)
    write_whole(folder / RESULTS_HTML, statistics_page(json.loads(content), own, told).encode())
    write_whole(folder / OWN_JSON, json.dumps({"estimates": own, "told": told}, indent=2).encode())
    refused = sum("refused" in one for one in results)
    structlog.get_logger().info("statistics_written", run=run, analyses=len(results), refused=refused)
