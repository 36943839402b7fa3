"""The site's report: its figures equal scikit-learn's, its page loads nothing, and its scores stay here."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protos.errors import ConfigurationError
from site_agent.desk.comparison.scored_rows import scored_rows
from site_agent.desk.findings.facts import TestPart as Part
from site_agent.desk.findings.facts import _test_part, site_facts
from site_agent.desk.findings.report_page import report_lines, report_page
from site_agent.desk.results.prior_report import make_prior_report
from site_agent.desk.results.saved_model import load_model
from site_agent.hospital import Hospital
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.dataset import prepare_rows, steady_split
from site_agent.trainer.data.tables import read_table
from tests.protos.privacy.private_plans import private_plan
from tests.site_agent.trainer.after_a_run import RUN, site_after_run
from tests.site_agent.trainer.prior.prior_federation import federate, members_of, prior_plan

# Everything that makes a browser send a request; anchors inside the page and the policy itself do not.
REQUEST = re.compile(
    r"(?:src|href|srcset|data|action|poster)\s*=|url\(|@import|<script|<link|<iframe|<img|<object|https?:", re.I
)


def requests_of(page: str) -> list[str]:
    """What makes a browser send a request. An image inside the page does not."""
    return REQUEST.findall(re.sub(r'<meta name="[a-z]+"|<img [^>]*src="data:image[^"]*">', "", page))


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    """A site after a run on real patients."""
    return site_after_run(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def facts(hospital: Hospital) -> Mapping[str, Any]:
    """What its report says."""
    return site_facts(hospital, None)


def test_kept_scores_are_the_owners_alone_and_have_no_identifier(hospital: Hospital) -> None:
    """Mode 0600, in a folder of mode 0700; no patient's identifier is in the file."""
    path = hospital.state_path / "scores" / RUN / "rows.safetensors"

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert re.search(rb"P\d{4}", path.read_bytes()) is None


def test_the_page_asks_for_nothing(facts: Mapping[str, Any]) -> None:
    """No request of any kind is in the page, and its own policy forbids them all."""
    page = report_page(facts)

    assert requests_of(page) == []
    assert "default-src 'none'" in page
    assert REQUEST.search('<img src="https://example.org/a.png">')


def test_a_changed_table_is_noticed(hospital: Hospital, tmp_path: Path) -> None:
    """Then the curves are shown, and parts that need the rows' columns are skipped with a warning."""
    other = tmp_path / "table.csv"
    lines = Path(hospital.data.table).read_text().splitlines(keepends=True)
    other.write_text("".join(lines[:-1]))
    data = hospital.data.model_copy(update={"table": str(other)})

    found = site_facts(hospital.model_copy(update={"data": data}), None)

    assert found["subgroups"] == []
    assert any("is not the one that this run was tested on" in str(one) for one in found["warnings"])  # type: ignore[union-attr]


def test_a_table_that_may_not_train_is_not_reported(hospital: Hospital, tmp_path: Path) -> None:
    """Where warnings stop training and nobody has accepted them, subgroups stay away; once accepted, they are shown."""
    strict = hospital.data.model_copy(update={"unaccepted_warnings": "stop"})

    told = site_facts(hospital, None)["warnings"]
    found = site_facts(hospital.model_copy(update={"data": strict}), None)

    assert any("Nobody has checked this table" in str(one) for one in told)  # type: ignore[operator]
    assert found["subgroups"] == []
    assert any("may not be used as it is now" in str(one) for one in found["warnings"])  # type: ignore[union-attr]


def test_what_is_not_there_is_told(hospital: Hospital, tmp_path: Path) -> None:
    """A run that kept no scores."""
    with pytest.raises(ConfigurationError, match="were not stored"):
        scored_rows(tmp_path, RUN)


def test_a_private_run_is_reported_on_the_rows_that_it_tested(hospital: Hospital) -> None:
    """Under differential privacy the table is divided patient by patient, and the report finds these rows again."""
    model, kept = load_model(hospital.state_path, RUN), scored_rows(hospital.state_path, RUN)
    table = read_table(Path(hospital.data.table), read_contract(Path(hospital.data.contract)))
    steady = steady_split(table, hospital.data.split)
    dataset, _ = prepare_rows(table, steady)
    private = replace(model, plan=private_plan())

    found = _test_part(hospital, private, replace(kept, dataset=dataset.digest))

    assert isinstance(found, Part)
    assert isinstance(_test_part(hospital, model, replace(kept, dataset=dataset.digest)), str)


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

    facts: Any = site_facts(hospital, run)
    page, lines = report_page(facts), " ".join(report_lines(facts))

    assert made < 17
    assert f"The run had {made} rounds: 1 for the means of the columns, {made - 2} for the common regression" in lines
    for text in (page, lines):
        assert "checkpoint: latest" not in text
        assert "model after round" not in text
    assert "Learning curves" not in page
