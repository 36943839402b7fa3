"""The way to the coordinator: each fault is really caused, named, and gone after its remedy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deploy.quickstart.ports import free_port
from host.address_checks import Proxy, Target, findings
from host.diagnosis import Finding, Severity
from tests.doctor.network import ConnectProxy, intercepting, intercepting_as, listening, passing_through
from tests.rehearsal.federation import Office, serving
from tests.rehearsal.study import plan_with

PATIENCE = 5.0


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """A federation with three members."""
    return Office.found(tmp_path_factory.mktemp("office"))


def target_of(office: Office, port: int, host: str = "localhost") -> Target:
    """The address that its site would call."""
    return Target(host, port, office.authority.root_pem().decode())


def look(target: Target, proxy: Proxy | None = None) -> list[Finding]:
    """The doctor's findings."""
    return findings(target, proxy, PATIENCE)


def the_failure(found: list[Finding]) -> Finding:
    """Return the one failure. It is the last finding, because nothing behind it can be checked."""
    assert [finding.severity for finding in found[:-1]].count(Severity.FAILURE) == 0
    assert found[-1].severity is Severity.FAILURE
    assert found[-1].remedy
    return found[-1]


def is_well(found: list[Finding]) -> bool:
    """Whether a coordinator of this federation answers."""
    return [(finding.identifier, finding.severity) for finding in found][-1] == ("D410", Severity.FINE)


async def looked_at_running(office: Office, state: Path, proxies: list[ConnectProxy]) -> None:
    """Against a coordinator that serves: well directly, through a proxy, and behind a load balancer."""
    async with serving(office, plan_with(office.identities), state) as running:
        port = int(running.address.rpartition(":")[2])
        direct = await asyncio.to_thread(look, target_of(office, port))
        assert is_well(direct), direct

        other_name = await asyncio.to_thread(look, target_of(office, port, "127.0.0.1"))
        assert the_failure(other_name).identifier == "D410"

        for proxy in proxies:
            with listening(proxy) as at:
                through = await asyncio.to_thread(look, target_of(office, port), Proxy("127.0.0.1", at))
                assert proxy.asked[0] == f"localhost:{port}"
                assert is_well(through) is proxy.allows

        with listening(passing_through(port)) as balancer:
            assert is_well(await asyncio.to_thread(look, target_of(office, balancer)))


def test_a_coordinator_that_answers_is_found(office: Office, tmp_path: Path) -> None:
    """Directly, through CONNECT, and behind passthrough. A proxy that refuses fails."""
    asyncio.run(looked_at_running(office, tmp_path / "state", [ConnectProxy(), ConnectProxy(allows=False)]))


def test_an_intercepting_device_is_named(office: Office, tmp_path: Path) -> None:
    """A device that opens TLS is reported by its authority's name, with whom to ask."""
    with listening(intercepting(tmp_path, "Acme Web Gateway")) as port:
        finding = the_failure(look(target_of(office, port)))

    assert finding.identifier == "D410"
    assert "Acme Web Gateway" in finding.says  # whom the operator asks


def test_a_name_without_an_address(office: Office) -> None:
    """A name without an address is reported as such, and no port is tried."""
    finding = the_failure(look(target_of(office, 8443, "no-such-host.invalid")))

    assert finding.identifier == "D407"


def test_a_port_that_nobody_listens_on(office: Office) -> None:
    """After a refused connection the operator must ask the office, because the network lets it through."""
    finding = the_failure(look(target_of(office, free_port())))

    assert finding.identifier == "D409"


@contextmanager
def full_port() -> Iterator[int]:
    """A port with a full queue never answers a further call, like a firewall that drops packets."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for caller in (first, second):
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_a_firewall_that_says_nothing(office: Office) -> None:
    """After a call without an answer the operator must ask the network department."""
    with full_port() as port:
        finding = the_failure(findings(target_of(office, port, "127.0.0.1"), None, 0.2))

    assert finding.identifier == "D409"


def test_a_program_that_speaks_no_tls(office: Office) -> None:
    """A web server without TLS, or a device that cuts TLS off, is distinguished from a closed port."""
    with listening(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        finding = the_failure(look(target_of(office, port)))

    assert finding.identifier == "D410"


@pytest.mark.parametrize("days", [-100, 6])
def test_a_coordinators_certificate_that_does_not_fit_this_clock(tmp_path: Path, days: int) -> None:
    """One that has ended, or begins in days to come, is a failure. After `pki renew` all is well."""
    office = Office.found(tmp_path, now=datetime.now(UTC) - timedelta(days=100))
    office.authority.renew_coordinator(datetime.now(UTC) + timedelta(days=days))

    with listening(intercepting_as(office)) as port:
        assert the_failure(look(target_of(office, port))).identifier == "D410"
    office.authority.renew_coordinator(datetime.now(UTC))
    with listening(intercepting_as(office)) as port:
        assert is_well(look(target_of(office, port)))


def test_a_proxy_that_does_not_answer(office: Office) -> None:
    """A missing proxy is reported by its own address, not by the coordinator's."""
    port = free_port()
    finding = the_failure(look(target_of(office, 8443), Proxy("127.0.0.1", port)))

    assert finding.identifier == "D408"


def test_an_ipv6_address_is_asked_of_a_proxy_in_brackets(office: Office) -> None:
    """As the agent asks: a proxy that follows RFC 3986 refuses it without."""
    proxy = ConnectProxy(allows=False)
    with listening(proxy) as port:
        the_failure(look(target_of(office, 8443, "2001:db8::1"), Proxy("127.0.0.1", port)))

    assert proxy.asked == ["[2001:db8::1]:8443"]


def test_a_proxy_that_wants_a_login(office: Office) -> None:
    """A missing, a wrong and an impossible login have remedies of their own, none of which shows the login."""
    cases = [(b"Basic realm=x", ""), (b"Basic realm=x", "user:wrong")]
    cases += [(kinds, "") for kinds in (b"Negotiate\r\nProxy-Authenticate: NTLM", b"Digest realm=x", b"")]
    remedies = []
    for kinds, login in cases:
        with listening(ConnectProxy(login=b"secret", kinds=kinds)) as port:
            finding = the_failure(look(target_of(office, 8443), Proxy("127.0.0.1", port, login)))
        assert finding.identifier == "D408"
        remedies.append(finding.remedy)

    missing, wrong, negotiate, digest, unnamed = remedies
    assert len({missing, wrong, negotiate}) == 3
    assert (digest, unnamed) == (negotiate, missing)
    assert "user:wrong" not in wrong


def test_a_name_that_leads_to_ipv6_first(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """If IPv6 comes first and only IPv4 answers, the site still connects, and the silent address is reported."""
    resolve = socket.getaddrinfo

    def both(host: str, port: int, *words: object, **names: object) -> object:
        four = resolve("127.0.0.1", port, type=socket.SOCK_STREAM)
        six = resolve("::1", port, type=socket.SOCK_STREAM)
        return six + four

    with listening(intercepting_as(office)) as port:  # on 127.0.0.1 alone
        monkeypatch.setattr(socket, "getaddrinfo", both)
        found = look(target_of(office, port))

    assert found[1].severity is Severity.WARNING
    assert is_well(found)
