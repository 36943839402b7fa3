"""The page of a site's agent: only the sent data, from the audit log."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from audit.own_log import AuditLog
from site_agent.service.site_page import LogView, SitePage
from site_agent.state_folders import audit_log_path

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A site's state: an approval, and three contributions of one run in its log."""
    log = AuditLog(audit_log_path(tmp_path), site="st-mary", now=lambda: NOW)
    log.write("plan_approved", plan="00", by="A. <Jones>")
    for number in range(3):
        log.write("contribution_handed_over", run="heart-v1-01", round=number, attempt=0, bytes=5560)
    log.close()
    return tmp_path


def test_the_page_tells_what_has_left_and_who_agreed(state: Path) -> None:
    """Contributions, bytes, rounds and the approval are on the page, and names are text."""
    html = asyncio.run(SitePage("st-mary", state).main())

    assert "heart-v1-01" in html
    assert "16.7" in html  # kilobytes
    assert "plan approved" in html
    assert "A. &lt;Jones&gt;" in html
    assert "is not running" in html


def test_what_is_written_later_is_counted_once(state: Path) -> None:
    """A second reading adds new records, and none twice."""
    view = LogView(audit_log_path(state))
    view.look()
    log = AuditLog(audit_log_path(state), site="st-mary", now=lambda: NOW)
    log.write("contribution_handed_over", run="heart-v1-01", round=3, attempt=0, bytes=40)
    log.close()

    view.look()
    view.look()

    assert view.runs["heart-v1-01"].contributions == 4
    assert view.runs["heart-v1-01"].handed_bytes == 3 * 5560 + 40


def test_a_damaged_line_is_told(state: Path) -> None:
    """A line that is no record is counted and reported on the page, and all others are shown."""
    with (audit_log_path(state)).open("ab") as file:
        file.write(b"{}\n")

    html = asyncio.run(SitePage("st-mary", state).main())

    assert "1 lines of the audit log cannot be read" in html
    assert "heart-v1-01" in html


@pytest.mark.parametrize("request_line", ["POST / HTTP/1.1", "DELETE / HTTP/1.1"])
def test_nothing_can_be_changed_over_it(state: Path, request_line: str) -> None:
    """Anything but a GET request is refused."""
    request = f"{request_line}\r\nHost: localhost\r\n\r\n".encode()

    assert asyncio.run(SitePage("st-mary", state).respond(request)).startswith(b"HTTP/1.1 405")


def test_another_hosts_name_gets_nothing(state: Path) -> None:
    """A request that names another host, as a page elsewhere could cause one, is refused."""
    answer = asyncio.run(SitePage("st-mary", state).respond(b"GET / HTTP/1.1\r\nHost: evil.example.org\r\n\r\n"))

    assert answer.startswith(b"HTTP/1.1 400")
    assert b"heart" not in answer
