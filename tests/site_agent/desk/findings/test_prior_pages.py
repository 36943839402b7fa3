"""A run of federated-prior on report, card and terminal: its rounds are those that were made; nothing was chosen."""

from __future__ import annotations

from typing import Any

import pytest

from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.report_page import report_lines, report_page
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
