"""A person reads epsilon everywhere about a private run: review, status, report, card and audit log."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from coordinator.commands.status_lines import status_lines
from global_layers.one_process import Collection
from host import log_commands
from host.audit_log import AuditLog
from protos.plan.manifest import manifest_of
from site_agent.commands.state_commands import _table
from site_agent.desk.plan_in_words import in_words
from site_agent.desk.plan_review import as_lines, review_sections
from site_agent.gate.privacy_ledger import PrivacyLedger
from tests.protos.privacy.private_plans import local_plan, private_network_plan

PLAN = private_network_plan({"epsilon": 2.0}, rounds=4)
PRICE = "epsilon 2, delta 1e-05 for each patient over all 4 rounds"


def test_the_review_has_the_price_and_what_privacy_changes() -> None:
    """The person who approves reads epsilon, delta, the worst case and how the method keeps the promise."""
    text = " ".join(in_words(PLAN, manifest_of(PLAN)).sentences)

    assert PRICE in text
    assert "at most 7.39 times as large or as small, plus or minus 1e-05" in text
    assert "In each round the sites send one noisy sum of clipped gradients" in text


def test_the_review_of_local_noise_counts_steps_and_names_who_draws_it() -> None:
    """The person who approves reads that all steps are paid for, and that the gate cannot check this noise."""
    plan = local_plan({"epsilon": 2.0}, rounds=4, steps=5)
    text = " ".join(in_words(plan, manifest_of(plan)).sentences)
    page = "\n".join(as_lines(list(review_sections(plan, manifest_of(plan)))))

    assert "epsilon 2, delta 1e-05 for each patient over all 20 steps" in text
    assert "Each site adds this whole noise in each of its steps" in text
    assert "The program that sends (the gate) cannot check whether the noise was added." in text
    assert "Each site itself adds the full noise in each of 5 steps of a round." in page
    assert "share of the noise" not in text + page


def test_the_coordinator_reports_the_promise_of_a_run() -> None:
    """It stands in the record of the run, in status --json, and in the lines for people."""
    facts = json.loads(json.dumps(Collection(PLAN).run.facts()))

    lines = [*status_lines({"run": facts, "runs_over": 0, "runs_waiting": 0, "sites": {}})]

    assert facts["privacy"].startswith(PRICE)
    assert any(line.startswith(f"Privacy: {PRICE}") for line in lines)
    plain = Collection(PLAN.model_copy(update={"privacy": None})).run.facts()
    assert plain["privacy"] is None


def test_a_payment_is_in_the_audit_log_and_in_the_site_s_status(tmp_path: Path) -> None:
    """What was spent is counted from the log, so the status shows it while the run goes on."""
    log = AuditLog(tmp_path / "audit.log", site="ahus", now=lambda: datetime.now(UTC))
    training = PLAN.private_training
    assert training is not None

    PrivacyLedger(log).pay(PLAN, bytes(32), [0] * len(training.names))
    (record,) = log.records("privacy_spent")
    log.close()

    assert (record["epsilon"], record["delta"], record["run"]) == (2.0, 1e-5, PLAN.run_name)
    assert "delta 1e-05, epsilon 2.0" in log_commands.in_words(record)
    assert "epsilon 2; see `site-agent privacy`" in _shown([2.0])
    assert "nothing" in _shown([])


def _shown(epsilons: list[float]) -> str:
    """The lines of `site-agent status` of an agent that has done nothing else."""
    nothing = dict.fromkeys(
        ("certificate_days_left", "rounds", "last_error", "round", "run", "coordinator", "connected_since", "trainer")
    )
    facts = nothing | {
        "site": "ahus", "phase": "training", "left": {"bytes": 0, "contributions": 0},
        "audit": {"records": 1}, "privacy_spent": epsilons,
    }  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=160).print(_table(facts))
    (line,) = (line for line in out.getvalue().splitlines() if "privacy spent" in line)
    return line
