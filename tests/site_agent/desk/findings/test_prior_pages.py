"""A run of federated-prior on report, card and terminal: its rounds are those that were made; nothing was chosen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from site_agent.desk.findings.facts import FEWEST_TO_CHOOSE, site_facts
from site_agent.desk.findings.report_page import kept_sentence, report_lines, report_page
from site_agent.desk.model_card import card_facts, card_markdown
from site_agent.desk.results.prior_report import make_prior_report
from site_agent.desk.use.model_in_use import model_in_use
from site_agent.hospital import Hospital
from tests.site_agent.trainer.prior.prior_federation import federate, members_of, prior_plan


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Hospital, str, int]:
    """A hospital after a run, the run's name, and the number of rounds that the coordinator closed."""
    plan = prior_plan("breast-cancer")
    members = members_of(tmp_path_factory.mktemp("sites"), plan, "breast-cancer")
    made = federate(plan, members).run.rounds_made
    member = members["ahus"]
    make_prior_report(member.hospital, member.study, member.preprocessing, plan.run_name)
    return member.hospital, plan.run_name, made


def test_report_and_card_name_the_rounds_that_the_coordinator_made(ended: tuple[Hospital, str, int]) -> None:
    """The plan allows 17. Neither page claims that a round's model was kept, or shows empty learning curves."""
    hospital, run, made = ended

    facts: Any = site_facts(hospital, run)
    page, lines = report_page(facts), " ".join(report_lines(facts))
    card = card_markdown(card_facts(hospital, model_in_use(hospital.state_path, run)))

    assert made < 17
    assert f"The run had {made} rounds: 1 for the means of the columns, {made - 2} for the common regression" in lines
    assert f"* rounds: {made}, and the plan allowed at most 17" in card
    for text in (page, lines, card):
        assert "checkpoint: latest" not in text
        assert "model after round" not in text
    assert "Learning curves" not in page


def test_no_page_says_that_validation_rows_chose_a_checkpoint(ended: tuple[Hospital, str, int]) -> None:
    """Neither if the rows are few; a local checkpoint on these rows has the warning."""
    hospital, run, _ = ended
    path = hospital.state_path / "reports" / f"{run}.json"
    written = path.read_bytes()
    as_local = json.loads(written)
    as_local["federated"]["checkpoint"]["rule"] = "local"

    facts: Any = site_facts(hospital, run)
    path.write_text(json.dumps(as_local))
    local: Any = site_facts(hospital, run)
    path.write_bytes(written)

    assert facts["rows"]["validation"] < FEWEST_TO_CHOOSE
    assert not any("checkpoint was chosen" in text for text in facts["warnings"])
    assert any("checkpoint was chosen" in text for text in local["warnings"])


def test_a_private_run_has_one_round(ended: tuple[Hospital, str, int]) -> None:
    """It has no Newton rounds, so the report's number of them is 0."""
    hospital, run, _ = ended
    facts: Any = site_facts(hospital, run)

    assert kept_sentence({**facts, "prior": {**facts["prior"], "newton_rounds": 0}}).startswith("The run had 1 round,")
