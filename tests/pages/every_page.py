"""Every page of the programs, each with enough content to show a fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from audit.reading.log_page import as_html
from host.command_line import extra
from host.local_page import document
from protos.plan.documents import parse_document
from protos.plan.manifest import manifest_of
from site_agent.desk.comparison.recommendation import MODEL_TITLES
from site_agent.desk.examination.examination_page import examination_page
from site_agent.desk.examination.examine import examine
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.live_page import LivePage, live_path
from site_agent.desk.findings.report_page import report_page
from site_agent.desk.fingerprint_sheet import sheet_sections
from site_agent.desk.plan_in_words import in_words
from site_agent.desk.plan_review import review_page, review_sections
from site_agent.hospital import Split
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import Survey, Table
from tests.audit.test_log_page import log_of_a_run
from tests.protos.examples import plan_of_method
from tests.rehearsal.study import made_up_identities, plan_with
from tests.site_agent.desk.examination.test_examination import CONTRACT
from tests.site_agent.desk.test_after_deployment import later, new_rows
from tests.site_agent.trainer.after_a_run import site_after_run

_LONG_RUN = "a-study-with-a-rather-long-name-v12-0123456789ab"


def every_page(folder: Path) -> Iterator[tuple[str, str]]:
    """The name of each page and its document, without the live pages' refreshing."""
    hospital = site_after_run(folder / "binary", simple_models=True)
    yield "report", report_page(site_facts(hospital, None, ["mean_radius"]))
    with extra("site_agent.desk.drift"):
        from site_agent.desk.drift.monitor_views import monitor_page
        from site_agent.desk.drift.monitoring import monitor_table

        new = new_rows(hospital, folder / "new.csv", later(hospital))
        yield "monitor", monitor_page(monitor_table(hospital, new, None))
    several = site_after_run(folder / "several", table="wine", siloed_baseline=False)
    yield "report-of-classes", report_page(site_facts(several, None))
    number = site_after_run(folder / "number", table="diabetes", siloed_baseline=False)
    yield "report-of-a-number", report_page(site_facts(number, None))
    yield "examination", _examination()
    plan = plan_of_method({"name": "fedavg"}, checkpoint="global")
    manifest = manifest_of(plan)
    sections = [in_words(plan, manifest, 341), *review_sections(plan, manifest)]
    yield "review", review_page(f"{plan.study}, version 1: what st-mary would send", sections, signatures=2)
    identities = made_up_identities("abc")
    sheet = sheet_sections(plan_with(identities), site="a", own=identities["a"])
    yield "fingerprints", review_page("Identity keys of the plan", sheet, signatures=2)
    summary = [("Study", "all"), ("Log", f"38 records in 1 file, unbroken. Checkpoint {'ab' * 32}.")]
    yield "audit", as_html("Audit log of st-mary", summary, log_of_a_run(12))
    with extra("site_agent.console"):
        yield from _console()
    yield "curves", _curves(folder / "curves", 3)
    yield "curves-of-a-long-run", _curves(folder / "long", 900)


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


def _console() -> Iterator[tuple[str, str]]:
    """The console's own pages, in a session that has every role."""
    from site_agent.console.console_actions import Done
    from site_agent.console.console_links import Role, Session
    from site_agent.console.console_pages import Desk, KnownPlan, Shelf

    desk = Desk(session=Session(roles=frozenset(Role), by="A. Jones"), account="root", fixed_name="")
    plan = KnownPlan(
        title="heart, version 2",
        digest="ab" * 32,
        standing="Training with this plan is not permitted.",
        is_approved=False,
    )
    plans = [plan, replace(plan, digest="cd" * 32, is_approved=True), replace(plan, is_damaged=True)]
    yield "console", desk.home(Shelf(site="st-mary", plans=plans, runs=[_LONG_RUN, "law-1"]))
    yield "console-plan", desk.plan(plan, 0, 1)
    yield "console-approved-plan", desk.plan(replace(plan, is_approved=True), 0, 1)
    finding = "WARNING: column age: its largest value is 900. Is it in another unit?\n" * 5
    facts = json.dumps({"digest": "01" * 32, "findings": [{"level": "warning"}], "accepted_by": None})
    done = Done(status=78, text=finding, problems="", document="", facts=facts)
    yield "console-examination", desk.examination(done, 2)
    models = [{"name": name, "title": name.replace("_", " "), "in_use": name == "siloed"} for name in MODEL_TITLES]
    yield "console-models", desk.models(json.dumps({"run": _LONG_RUN, "models": models, "notices": ["In use: one."]}))
    yield "console-result", desk.result(replace(done, problems=f"site-agent: The plan {'ab' * 32} was refused."))


def _curves(folder: Path, rounds: int) -> str:
    place = live_path(folder, _LONG_RUN)
    place.parent.mkdir(parents=True)
    losses = [[number, 0.4 + 1.0 / number] for number in range(1, rounds + 1)]
    facts = {"metric": "auroc", "training": losses[::2], "values": [[n, 1 - v / 3] for n, v in losses[::2]]}
    place.write_text(json.dumps(facts | {"validation": losses, "measured": rounds}))
    return document("Own models of st-mary", LivePage("st-mary", folder).main()).decode()
