"""An invitation can be read aloud, keeps its secret, and is checked when it is read."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timedelta

import pytest

from pki import certificates
from pki.authority import Authority
from pki.invitation import Invitation, new_token
from pki.names import Address, FederationName, SiteName
from protos.errors import ConfigurationError, RefusedError


@pytest.fixture
def invitation(authority: Authority, now: datetime) -> Invitation:
    """An invitation of st-mary."""
    return Invitation(
        federation=FederationName("heart"),
        site=SiteName("st-mary"),
        coordinator=Address("localhost", 8443),
        enrolment=Address("localhost", 8444),
        expires=now + timedelta(hours=72),
        root_pem=authority.root_pem(),
        token=new_token(),
    )


def test_the_fingerprint_covers_whom_where_and_which(invitation: Invitation, now: datetime) -> None:
    """Each change that a forger would make changes the fingerprint, and a second invitation has another one."""
    forged_root = certificates.root_certificate(certificates.new_tls_key(), FederationName("heart"), now)
    changed = [
        dataclasses.replace(invitation, federation=FederationName("lung")),
        dataclasses.replace(invitation, site=SiteName("st-luke")),
        dataclasses.replace(invitation, coordinator=Address("localhost", 8445)),
        dataclasses.replace(invitation, enrolment=Address("evil.example", 8444)),
        dataclasses.replace(invitation, root_pem=certificates.certificate_pem(forged_root)),
        dataclasses.replace(invitation, token=new_token()),
        dataclasses.replace(invitation, expires=invitation.expires + timedelta(hours=1)),
    ]

    assert len({one.fingerprint for one in (invitation, *changed)}) == 8
    assert len(invitation.fingerprint.replace("-", "")) * 5 >= 80


def test_the_token_is_not_shown(invitation: Invitation) -> None:
    """Neither the token's bytes nor its spelling is in the representation."""
    token = json.loads(invitation.to_json())["token"]

    assert "token" not in repr(invitation)
    assert token not in repr(invitation)
    assert len(token) == 32


def test_an_expired_invitation_is_refused(invitation: Invitation) -> None:
    """The last second is valid, and the expiry itself is not."""
    invitation.check_not_expired(invitation.expires - timedelta(seconds=1))

    with pytest.raises(RefusedError):
        invitation.check_not_expired(invitation.expires)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2), ("format", "1"), ("site", "Not A Name"), ("federation", ""), ("coordinator", "nowhere"),
        ("enrolment", "x:99999"), ("expires", "tomorrow"), ("token", "short"), ("token", "ä" * 32),
        ("token", "!" * 32), ("root", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), ("root", ""),
        ("root", "ä"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_an_operators_error(invitation: Invitation, key: str, value: object) -> None:
    """Every field is checked when the file is read."""
    fields = json.loads(invitation.to_json())
    fields[key] = value

    with pytest.raises(ConfigurationError):
        Invitation.from_json(json.dumps(fields).encode())
