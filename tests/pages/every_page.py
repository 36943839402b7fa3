"""Every page of the programs, each with enough content to show a fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import numpy as np

from host.log_page import as_html
from protos.plan.documents import parse_document
from protos.plan.manifest import manifest_of
from site_agent.desk.examination.examination_page import examination_page
from site_agent.desk.examination.examine import examine
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.report_page import report_page
from site_agent.desk.fingerprint_sheet import sheet_sections
from site_agent.desk.plan_in_words import in_words
from site_agent.desk.plan_review import review_page, review_sections
from site_agent.hospital import Split
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import Survey, Table
from tests.host.test_log_page import log_of_a_run
from tests.protos.examples import plan_of_method
from tests.rehearsal.study import made_up_identities, plan_with
from tests.site_agent.desk.examination.test_examination import CONTRACT
from tests.site_agent.trainer.after_a_run import site_after_run


def every_page(folder: Path) -> Iterator[tuple[str, str]]:
    """The name of each page and its document."""
    hospital = site_after_run(folder / "binary", simple_models=True)
    yield "report", report_page(site_facts(hospital, None))
    several = site_after_run(folder / "several", table="wine", siloed_baseline=False)
    yield "report-of-classes", report_page(site_facts(several, None))
    number = site_after_run(folder / "number", table="diabetes", siloed_baseline=False)
    yield "report-of-a-number", report_page(site_facts(number, None))
    yield "examination", _examination()
    plan = plan_of_method({"name": "fedavg"}, checkpoint="global")
    manifest = manifest_of(plan)
    sections = [in_words(plan, manifest), *review_sections(plan, manifest)]
    yield "review", review_page(f"{plan.study}, version 1: what st-mary would send", sections, signatures=2)
    identities = made_up_identities("abc")
    sheet = sheet_sections(plan_with(identities), site="a", own=identities["a"])
    yield "fingerprints", review_page("Identity keys of the plan", sheet, signatures=2)
    summary = [("Study", "all"), ("Log", f"38 records in 1 file, unbroken. Checkpoint {'ab' * 32}.")]
    yield "audit", as_html("Audit log of st-mary", summary, log_of_a_run(12))


def _examination() -> str:
    """The page of a table with errors, warnings and notes."""
    contract = parse_document(CONTRACT.encode(), Contract, source="contract.yaml", consequence="")
    generator, rows = np.random.default_rng(7), 240
    ill = (np.arange(rows) % 2).astype(np.float64)
    features = {
        "age": np.round(generator.normal(60 + 30 * ill, 10), 1),
        "chol": np.where(np.arange(rows) % 3 == 0, np.nan, np.round(generator.normal(220, 30, size=rows))),
        "sex": np.ones(rows),
    }
    table = Table(
        contract=contract,
        rows=rows,
        features=MappingProxyType(features),
        target=ill,
        patients=tuple(f"Zebra{row // 2}" for row in range(rows)),
        group_positions=MappingProxyType({"ward": (np.arange(rows) // 2 % 2).astype(np.float64)}),
    )
    examination = examine(Survey(table=table, mistakes=()), Split(seed=0))
    return examination_page(examination, site="st-mary", accepted_by=None, warnings_stop=True)
