"""A release: every site of the plan signs for these exact parameters and one recipient, or nobody gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protos.errors import RefusedError
from protos.fingerprints import fingerprint
from protos.plan.plan import Plan
from protos.wire.release_statements import ReleaseApproval, approve_release, check_release, read_release_approval
from tests.rehearsal.study import SITES, plan_with

KEYS = {site: Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number, site in enumerate(SITES)}
PLAN: Plan = plan_with({site: fingerprint(key.public_key().public_bytes_raw()) for site, key in KEYS.items()})
DIGEST = "ab" * 32


def given(site: str, **changes: Any) -> ReleaseApproval:
    """One site's approval."""
    facts = {"run": PLAN.run_name, "parameters_sha256": DIGEST, "recipient": "Dr Lee", "by": "A. Jones", "at": "2026"}
    return approve_release(KEYS[changes.pop("key", site)], site=site, **facts | changes)


def test_all_sites_together_release_to_one_recipient() -> None:
    """The order of the files does not matter, and a file given twice does no harm."""
    approvals = [given(site) for site in reversed(SITES)]

    assert check_release(PLAN, PLAN.site_names, DIGEST, [*approvals, approvals[0]]) == "Dr Lee"


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "another recipient": ({"recipient": "Dr Lie"}, "the sites named 2 different recipients"),
    "another run": ({"run": "study-v2-abc"}, "the release of another run"),
    "other parameters": ({"parameters_sha256": "cd" * 32}, "the release of other parameters"),
    "another site's key": ({"key": "b"}, "a key that the plan does not list"),
}


@pytest.mark.parametrize("name", LIES)
def test_what_a_site_did_not_sign_is_no_release(name: str) -> None:
    """One file that speaks of something else, or is signed by somebody else, stops the release."""
    changes, reason = LIES[name]

    with pytest.raises(RefusedError, match=reason):
        check_release(PLAN, PLAN.site_names, DIGEST, [given("a", **changes), given("b"), given("c")])


@pytest.mark.parametrize("missing", SITES)
def test_one_missing_site_stops_it(missing: str) -> None:
    """The sites whose files are missing are named."""
    approvals = [given(site) for site in SITES if site != missing]

    with pytest.raises(RefusedError, match=f"the approval of {missing} is missing"):
        check_release(PLAN, PLAN.site_names, DIGEST, approvals)


@pytest.mark.parametrize("field", ["recipient", "by", "at", "site", "run", "parameters_sha256"])
def test_every_field_is_under_the_signature(field: str) -> None:
    """A file that was changed after it was signed is refused."""
    other = {"site": "b", "parameters_sha256": "cd" * 32}.get(field, "something else")
    changed = given("a").model_copy(update={field: other})

    with pytest.raises(RefusedError):
        check_release(PLAN, PLAN.site_names, DIGEST, [changed, *(given(site) for site in SITES)])


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b"\xff", b'{"run": "x"}'])
def test_a_file_that_is_no_approval_is_told(tmp_path: Path, content: bytes) -> None:
    """It is refused by its name."""
    (tmp_path / "x.release").write_bytes(content)

    with pytest.raises(RefusedError, match=r"x\.release is not a site's approval"):
        read_release_approval(tmp_path / "x.release")
