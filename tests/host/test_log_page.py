"""The audit log as a page: related records are together, and none is missing."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest

from host.log_page import as_html
from host.log_report import as_csv, in_words

RUN = "heart-v1-0123456789ab"


def log_of_a_run(rounds: int) -> list[tuple[int, dict[str, Any]]]:
    """A site's records: an approval, a run with new keys between its rounds, a refusal."""
    facts: list[dict[str, Any]] = [
        {"event": "plan_approved", "by": "A. Jones", "study": "heart", "version": 1, "plan": "00"},
        {"event": "run_joined", "run": RUN, "method": "fedavg"},
    ]
    for number in range(rounds):
        at = {"run": RUN, "round": number, "attempt": 0}
        sent = {"bytes": 5560, "tensors": 8, "masked": True, "contributors": ["a", "b"]}
        facts += [{"event": "contribution_released", **at, **sent}, {"event": "contribution_handed_over", **at, **sent}]
        facts.append({"event": "key_session_agreed", "sites": ["a", "b"], "run": RUN})
    facts.append({"event": "plan_refused", "reason": "the plan has 20,000 rounds; this hospital allows 1,000"})
    facts.append({"event": "something_new", "weight": 3})
    return [
        (number, {"time": f"2026-03-01T12:{number // 60:02}:{number % 60:02}+00:00", **one})
        for number, one in enumerate(facts)
    ]


@pytest.mark.parametrize("rounds", [0, 1, 12])
def test_every_record_is_on_the_page_once(rounds: int) -> None:
    """All its facts are on the page, whatever its group, and no record is shown twice."""
    records = log_of_a_run(rounds)

    page = as_html("Audit log", [("Study", "all")], records)

    shown = [one for text in re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL) for one in json.loads(unescape(text))]
    assert sorted(shown, key=lambda facts: facts["time"]) == [facts for _, facts in records]
    numbers = [int(one) for cell in re.findall(r"<td>([\d, ]+)</td><td><details", page) for one in cell.split(", ")]
    assert sorted(numbers) == list(range(len(records)))


def test_what_belongs_together_stands_together() -> None:
    """The page has people's actions and refusals, then the run with one line for each round, then keys and the log."""
    page = as_html("Audit log", [], log_of_a_run(12))

    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert headings == [
        "What was checked, and what was sent",
        "What people decided",
        "What was refused",
        f"Run {RUN}",
        "Everything else",
    ]
    run = page.partition(f">Run {RUN}</h2>")[2].partition("</section>")[0]
    rounds = re.findall(r'<tr><th scope="row" class="number">(\d+)</th>', run)
    assert rounds == [str(number) for number in range(1, 13)]
    assert "This site sent 12 contributions with 66,720 bytes in this run." in run


def test_people_count_rounds_from_one_everywhere() -> None:
    """The first round of the protocol, 0, is round 1 in words, in the table and in CSV."""
    facts = {"event": "contribution_handed_over", "run": RUN, "round": 0, "bytes": 7}

    assert in_words(facts) == f"The contribution to round 1 of {RUN} was sent: 7 bytes."
    assert in_words({"event": "unheard_of", "round": 0}) == "Unheard of: round 1."
    accepted = {"event": "data_accepted", "by": "A. Jones"}
    assert in_words(accepted | {"warnings": 1}) == "A. Jones accepted 1 warning about this site's table."
    assert in_words(accepted | {"warnings": 21}) == "A. Jones accepted 21 warnings about this site's table."
    assert f",{RUN},1," in as_csv([(0, facts)])
