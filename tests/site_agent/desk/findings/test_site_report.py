"""The site's report: its figures equal scikit-learn's, its page loads nothing, and its scores stay here."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from typing import Any

import pytest
from scipy.stats import binomtest

from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.report_page import report_lines, report_page
from site_agent.desk.results.prior_report import make_prior_report
from site_agent.hospital import Hospital
from tests.site_agent.trainer.prior.prior_federation import federate, members_of, prior_plan
from tests.site_agent.trainer.sites import RUN, site_after_run

# Everything that makes a browser send a request; anchors inside the page and the policy itself do not.
REQUEST = re.compile(
    r"(?:src|href|srcset|data|action|poster)\s*=|url\(|@import|<script|<link|<iframe|<img|<object|https?:", re.I
)


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    """A site after a run on real patients."""
    return site_after_run(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def facts(hospital: Hospital) -> Mapping[str, Any]:
    """What its report says."""
    return site_facts(hospital.state_path, None)


def test_the_report_is_the_owners_alone_and_has_no_identifier(hospital: Hospital) -> None:
    """Mode 0600; no patient's identifier is in the file."""
    path = hospital.state_path / "reports" / f"{RUN}.json"

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert re.search(rb"P\d{4}", path.read_bytes()) is None


def test_the_page_asks_for_nothing(facts: Mapping[str, Any]) -> None:
    """No request of any kind is in the page, and its own policy forbids them all."""
    page = report_page(facts)

    # An image inside the page makes a browser send no request.
    assert REQUEST.findall(re.sub(r'<meta name="[a-z]+"|<img [^>]*src="data:image[^"]*">', "", page)) == []
    assert "default-src 'none'" in page
    assert REQUEST.search('<img src="https://example.org/a.png">')


def test_the_share_with_the_outcome_has_wilsons_interval(facts: Mapping[str, Any]) -> None:
    """It is the share that calibration observes, and each of these rows is a patient."""
    share, rows = facts["prevalence"], facts["rows"]["test"]
    interval = binomtest(round(share["value"] * rows), rows).proportion_ci(method="wilson")

    assert share["value"] == facts["federated"]["calibration"]["observed"]
    assert share["interval"] == pytest.approx([interval.low, interval.high], abs=1e-12)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Hospital, str, int]:
    """A hospital after a run, the run's name, and the number of rounds that the coordinator closed."""
    plan = prior_plan("breast-cancer")
    members = members_of(tmp_path_factory.mktemp("sites"), plan, "breast-cancer")
    made = federate(plan, members).run.rounds_made
    member = members["ahus"]
    make_prior_report(member.hospital, member.study, member.preprocessing, plan.run_name)
    return member.hospital, plan.run_name, made


def test_the_report_names_the_rounds_that_the_coordinator_made(ended: tuple[Hospital, str, int]) -> None:
    """The plan allows 17. It does not claim that a round's model was kept, or shows empty learning curves."""
    hospital, run, made = ended

    facts: Any = site_facts(hospital.state_path, run)
    page, lines = report_page(facts), " ".join(report_lines(facts))

    assert made < 17
    assert f"The run had {made} rounds: 1 for the means of the columns, {made - 2} for the common regression" in lines
    for text in (page, lines):
        assert "checkpoint: latest" not in text
        assert "model after round" not in text
    assert "Learning curves" not in page
