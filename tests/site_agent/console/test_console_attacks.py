"""Attacks by others on the computer and on the web against a console. Each one fails."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protos.plan.plan import Plan
from site_agent.approvals import find_approval
from site_agent.approving import announced_plans
from site_agent.console.console_actions import ACTS
from site_agent.console.console_links import LINK_SECONDS, Role
from site_agent.console.console_requests import LONGEST_FORM_BYTES, RefusedRequest, read_form, read_head
from site_agent.state_folders import audit_log_path
from tests.for_each import for_each
from tests.site_agent.console.running_console import Answer, Running, Visitor, make_hospital, running_console

HEADERS = {
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
OTHER_HOSTS = ("evil.example:{port}", "localhost:{port}", "127.0.0.1", "127.0.0.1:{port}.evil.example", "[::1]:{port}")
# How browsers of today and of earlier years mark a page that nobody has opened yet.
AHEAD: list[dict[str, str | None]] = [
    {"Sec_Purpose": "prefetch"},
    {"Sec_Purpose": "prefetch;prerender"},
    {"Purpose": "prefetch"},
    {"X_Purpose": "preview"},
    {"X_Moz": "prefetch"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hospital to which a plan was announced."""
    folder = tmp_path_factory.mktemp("hospital")
    make_hospital(folder)
    return folder


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Running]:
    """A console with a link of its own for two visitors with all roles."""
    with running_console(folder, (frozenset(Role),) * 2) as running:
        yield running


@pytest.fixture(scope="module")
def visitor(running: Running, folder: Path) -> Visitor:
    """A person who has read the plan, so that a forged form would approve it."""
    visitor = running.enter()
    assert visitor.read_plan(plan_of(folder)).status == 200
    return visitor


@pytest.fixture(scope="module")
def other(running: Running) -> Visitor:
    """Another person with a session of their own."""
    return running.enter(1)


def plan_of(folder: Path) -> Plan:
    """The plan that was announced."""
    return Plan.model_validate_json(announced_plans(folder / "state")[0].read_bytes())


def is_untouched(folder: Path) -> bool:
    """Whether nothing was decided or recorded here."""
    state = folder / "state"
    return find_approval(state, plan_of(folder)) is None and not audit_log_path(state).exists()


def approval(folder: Path) -> dict[str, str]:
    """The form that approves the plan."""
    return {"action": "approve", "plan": plan_of(folder).digest.hex(), "by": "Mallory"}


@pytest.mark.parametrize(
    "fields",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": None},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Dest": "iframe"},
        {"Sec_Fetch_Dest": "empty"},
        {"Content_Type": "text/plain"},
        {"Content_Type": "multipart/form-data; boundary=x"},
    ],
)
def test_a_form_that_another_page_sends_does_nothing(
    visitor: Visitor, folder: Path, fields: dict[str, str | None]
) -> None:
    """With the person's own cookie and key, a form of another origin, frame or script is refused."""
    assert visitor.post(approval(folder), **fields).status in (403, 415)
    assert is_untouched(folder)


@pytest.mark.parametrize("key", ["none", "empty", "another session's", "cut"])
def test_a_form_without_this_sessions_key_does_nothing(
    visitor: Visitor, other: Visitor, folder: Path, key: str
) -> None:
    """The third secret must be this session's own, even from the right origin."""
    keys = {"empty": "", "another session's": other.form_key, "cut": visitor.form_key[:-1]}
    form = approval(folder) | ({"form_key": keys[key]} if key in keys else {"form_key": "none"})

    assert visitor.post(form).status == 403
    assert is_untouched(folder)


def test_a_page_that_another_page_asks_for_is_not_shown(visitor: Visitor) -> None:
    """No other site and no other port of this computer can load, frame or prefetch a page with the person's cookie."""
    wrong: list[dict[str, str | None]] = [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Dest": "iframe"},
        {"Sec_Fetch_Dest": "image"},
        {"Sec_Fetch_Dest": "script"},
        {"Sec_Fetch_Dest": "empty"},
        *AHEAD,
    ]

    assert [visitor.get(**fields).status for fields in wrong] == [403] * len(wrong)
    assert visitor.get().status == 200


def test_another_user_of_the_machine_sees_nothing(running: Running, visitor: Visitor, other: Visitor) -> None:
    """Without both secrets of one session every address has the same answer, whether there is a session or not."""
    name = visitor.cookie.partition("=")[0]
    tries: list[Answer] = [
        running.ask("/"),
        running.ask(visitor.folder),
        running.ask("/made-up-folder/"),
        running.ask(visitor.folder, Cookie=f"{name}="),
        running.ask(visitor.folder, Cookie=f"{name}=x"),
        running.ask(visitor.folder, Cookie=other.cookie),
        running.ask(other.folder, Cookie=visitor.cookie),
        running.ask(f"{visitor.folder}document/1"),
        running.ask("/enter/"),
        running.ask("/enter/x"),
        running.ask(visitor.folder, "action=log"),
    ]

    assert {(answer.status, answer.body) for answer in tries} == {(403, tries[0].body)}
    assert not any("set-cookie" in answer.fields for answer in tries)
    assert running.ask(visitor.folder, Cookie=f"{name}=x; {visitor.cookie}").status == 200


def test_a_cookie_is_sent_to_this_session_alone(running: Running, folder: Path) -> None:
    """The cookie belongs to a secret folder, so another port of 127.0.0.1 does not receive it."""
    with running_console(folder) as fresh:
        fields = fresh.ask(f"/enter/{fresh.links[0]}").fields

    words = fields["set-cookie"].split("; ")
    assert words[1:] == [f"Path={fields['location']}", "HttpOnly", "SameSite=Strict"]
    assert len(fields["location"]) > 40


def test_a_stolen_link_opens_nothing(folder: Path) -> None:
    """A link works once; what only looks ahead does not use it up, and the terminal shows that it was used."""
    with running_console(folder, (frozenset({Role.OFFICER}),)) as running:
        link = f"/enter/{running.links[0]}"

        assert [running.ask(link, **fields).status for fields in AHEAD] == [403] * len(AHEAD)
        assert running.ask(link, method="HEAD").status == 405
        assert running.ask(link, "x=y").status == 403
        assert running.ask(link[:-1]).status == 403
        assert running.said == []
        assert running.ask(link).status == 303
        assert running.said == ["A browser opened the link of the data protection officer. It cannot be used again."]
        stolen = running.ask(link)
        assert stolen.status == 403
        assert "If you did not use this link yourself" in stolen.body
        assert "set-cookie" not in stolen.fields


def test_a_link_expires(folder: Path) -> None:
    """After ten minutes an unused link opens nothing."""
    with running_console(folder, (frozenset(Role),) * 2) as running:
        running.clock.seconds += LINK_SECONDS - 1
        visitor = running.enter()
        running.clock.seconds += 1

        assert running.ask(f"/enter/{running.links[1]}").status == 403
        assert visitor.get().status == 200


def test_no_answer_may_be_framed_or_kept(running: Running, visitor: Visitor) -> None:
    """Every kind of answer forbids frames, scripts, storing and guessing of types."""
    answers = [
        visitor.get(),
        visitor.get("document/1"),
        visitor.get("none"),
        visitor.get(method="PUT"),
        visitor.get(Host="evil.example"),
        running.ask("/"),
        visitor.post({"action": "none"}),
    ]

    assert [answer.status for answer in answers] == [200, 200, 404, 405, 421, 403, 400]
    for answer in answers:
        assert {name: answer.fields[name] for name in HEADERS} == HEADERS
        policy = answer.fields["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        assert "base-uri 'none'" in policy
        assert "script-src" not in policy
        assert "unsafe" not in policy


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_another_name_for_this_computer_is_refused(visitor: Visitor, folder: Path, host: str) -> None:
    """A name that an attacker makes point here reaches nothing, even with the person's cookie and key."""
    named = host.format(port=visitor.running.host.rpartition(":")[2])

    assert visitor.get(Host=named).status == 421
    assert visitor.post(approval(folder), Host=named, Origin=f"http://{named}").status == 421
    assert visitor.get(Host=None).status == 421
    assert is_untouched(folder)


@pytest.mark.parametrize("role", list(Role))
def test_a_role_does_only_its_own_acts(folder: Path, role: Role) -> None:
    """The link of one role cannot run a command of another, and its page offers none."""
    typed = {"plan": plan_of(folder).digest.hex(), "by": "Mallory", "because": "x", "digest": "0" * 16}
    typed |= {"run": "law-1", "model": "siloed", "until": ""}
    with running_console(folder, (frozenset({role}),)) as running:
        visitor = running.enter()
        page = visitor.get().body
        foreign = [name for name, act in ACTS.items() if act.role is not role]

        assert [visitor.post({"action": name, **typed}).status for name in foreign] == [403] * len(foreign)
        assert [name for name in foreign if f'value="{name}"' in page] == []
    assert is_untouched(folder)


@pytest.mark.parametrize(
    "path",
    ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "document/../../hospital.yaml", "document//etc/passwd", "page/-1",
     "page/1e0", "document/９", "page/" + "9" * 4000, "%2e%2e/", "?action=log", "document/1/../1", "\\..\\x", "page/"],
)  # fmt: skip
def test_no_file_is_found_by_a_path(visitor: Visitor, path: str) -> None:
    """A path is compared with the console's own pages, letter by letter, and leads to no file."""
    answer = visitor.get(path)

    assert answer.status in (400, 404)
    assert "root:" not in answer.body
    assert "policy:" not in answer.body


@pytest.mark.parametrize("run", ["/etc/evil", "../../evil", "..", "a/b", "law-1\0", "law-1\n--yes", "-x", "a" * 201])
@pytest.mark.parametrize("action", ["report", "compare"])
def test_a_run_is_a_name_and_no_path(visitor: Visitor, action: str, run: str) -> None:
    """No command is run, so no file outside the site's own folders is read for a clinician."""
    assert visitor.post({"action": action, "run": run}).status == 400


@pytest.mark.parametrize("name", ["a\nb", "a\0b", "a\x7f", "\t"])
def test_a_name_has_no_control_character(visitor: Visitor, folder: Path, name: str) -> None:
    """A second line in a name could look like another record."""
    assert visitor.post(approval(folder) | {"by": name}).status == 400
    assert is_untouched(folder)


def test_a_pipe_or_a_dangling_link_among_the_plans_takes_nothing_away(tmp_path: Path) -> None:
    """What is no plain file is no plan; the page comes, and an approval stays on it behind many newer plans."""
    plan = make_hospital(tmp_path)
    plans = announced_plans(tmp_path / "state")[0].parent
    os.mkfifo(plans / "pipe.json")
    (plans / "link.json").symlink_to(tmp_path / "nowhere")
    with running_console(tmp_path) as running:
        assert plan.study in running.enter().get().body


def test_a_body_is_refused_before_it_is_read(visitor: Visitor, folder: Path) -> None:
    """Too long, of no length, in pieces, or of nobody: the answer comes although no byte of a body was sent."""
    longest = str(LONGEST_FORM_BYTES + 1)

    assert visitor.post({}, Content_Length=longest).status == 413
    assert visitor.post({}, Content_Length="9" * 12).status == 413
    assert visitor.post({}, Content_Length="-1").status == 411
    assert visitor.post({}, Content_Length=None).status == 411
    assert visitor.post({}, Transfer_Encoding="chunked").status == 411
    assert visitor.post({}, Cookie=None, Content_Length=str(LONGEST_FORM_BYTES)).status == 403
    assert is_untouched(folder)


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_other_methods_are_refused(visitor: Visitor, method: str) -> None:
    """Only GET and POST are answered."""
    assert visitor.get(method=method).status == 405


@pytest.mark.parametrize(
    "lines",
    ["Host: {host}\r\nHost: {host}", "Host: {host}\r\n Host: x", "Host : {host}", "Host: {host}\r\nx", "",
     "Host: {host}\r\nOrigin: http://{host}\r\nOrigin: http://evil.example"],
)  # fmt: skip
def test_an_ambiguous_head_is_refused(running: Running, lines: str) -> None:
    """A request that two programs could read differently is refused."""
    head = lines.format(host=running.host)

    assert running.raw(f"GET / HTTP/1.1\r\n{head}\r\n\r\n".encode()).status in (400, 421)
    assert running.raw(b"\x16\x03\x01\x02\x00\r\n\r\n").status == 400
    assert running.raw(b"GET http://evil.example/ HTTP/1.1\r\n\r\n").status == 400


@for_each("seed", range(20))
def test_no_bytes_make_the_reading_fail(seed: int) -> None:
    """Every changed head or form is read or refused, and nothing else happens."""
    generator = random.Random(seed)
    head = b"POST /x/ HTTP/1.1\r\nHost: h:1\r\nOrigin: http://h:1\r\nCookie: console=a; b=c\r\nContent-Length: 9\r\n"
    head += b"Content-Type: application/x-www-form-urlencoded\r\nSec-Fetch-Site: same-origin"
    form, read = b"action=approve&by=A%20Jones&form_key=%C3%A9", 0
    statuses: set[int] = set()
    for _ in range(300):
        for judge, sound in ((lambda raw: read_head(raw, "h:1"), head), (read_form, form)):
            changed = bytearray(sound)
            for _ in range(generator.randrange(3)):
                place = generator.randrange(len(changed))
                changed[place : place + generator.randrange(4)] = generator.randbytes(generator.randrange(4))
            try:
                judge(bytes(changed))
                read += 1
            except RefusedRequest as refused:
                statuses.add(refused.status)

    assert read > 50
    assert len(statuses) > 1


def test_a_field_that_comes_twice_is_refused(visitor: Visitor, folder: Path) -> None:
    """A form in which a field has two values does nothing."""
    form = f"form_key={visitor.form_key}&action=approve&by=x&by=y&plan={plan_of(folder).digest.hex()}"

    for body in (form, "=&=", "%ff=%ff", "&".join(f"f{number}=1" for number in range(99))):
        assert visitor.running.ask(visitor.folder, body, Cookie=visitor.cookie).status in (400, 403)
    assert is_untouched(folder)


def test_a_slow_client_is_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends its head or its body slowly is disconnected, however steadily it sends."""
    monkeypatch.setattr("host.local_server.PATIENCE_SECONDS", 0.3)
    with running_console(folder) as running:
        visitor = running.enter()
        head = f"Host: {running.host}\r\nOrigin: http://{running.host}\r\nCookie: {visitor.cookie}\r\n"
        form = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 4000\r\n\r\n"
        starts = [f"POST {visitor.folder} HTTP/1.1\r\n{head}", f"POST {visitor.folder} HTTP/1.1\r\n{head}{form}"]
        for start in starts:
            began = time.monotonic()
            assert drip(running.host, start.encode()) == b""
            assert time.monotonic() - began < 20
        assert visitor.get().status == 200


def drip(host: str, start: bytes) -> bytes:
    """Send a start and then a byte every now and then, until the other side hangs up; what it answered."""
    name, _, port = host.rpartition(":")
    with socket.create_connection((name, int(port)), timeout=0.05) as connection:
        connection.sendall(start)
        for _ in range(400):
            try:
                return connection.recv(1000)
            except TimeoutError:
                connection.sendall(b"x")
            except ConnectionError:
                return b""
    raise AssertionError("the console waits without end")


def test_connections_that_others_hold_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than 64 connections are held at once; more are closed at once, and after a while there is room again."""
    monkeypatch.setattr("host.local_server.PATIENCE_SECONDS", 1.0)
    with running_console(folder) as running:
        visitor = running.enter()
        name, _, port = running.host.rpartition(":")
        held = [socket.create_connection((name, int(port)), timeout=30) for _ in range(64)]
        refused = visitor.get()
        ended = [connection.recv(1) for connection in held]
        for connection in held:
            connection.close()

        assert refused.status == 0
        assert ended == [b""] * 64
        assert visitor.get().status == 200
