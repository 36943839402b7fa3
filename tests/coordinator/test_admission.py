"""Admission to a run: identity, plan and manifest must all match."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.rounds.admission import refuse_identity, refuse_join
from protos.plan.manifest import manifest_of
from protos.wire.messages import Join
from tests.protos.examples import listed, plan_with

PLAN = plan_with()
MANIFEST = manifest_of(PLAN)
JOIN = Join(PLAN.run_name, PLAN.digest, MANIFEST.digest, 0)


@pytest.mark.parametrize("name", ["site-003", "", "SITE-000", "site-000 "])
def test_a_site_that_is_not_listed_may_not(name: str) -> None:
    """A name that the plan does not list is refused, even with a listed key."""
    reason = refuse_identity(PLAN, name, PLAN.sites[0].identity)

    assert reason == f"the plan heart does not list {name}"


@pytest.mark.parametrize("identity", [None, "", listed(4)[3]["identity"], listed(3)[1]["identity"]])
def test_a_certificate_alone_proves_nothing(identity: str | None) -> None:
    """A listed name with no key, another site's or a stranger's key is refused."""
    reason = refuse_identity(PLAN, "site-000", identity)

    assert reason == "the plan heart lists site-000 with another identity key"


def test_a_join_fits_plan_and_manifest_or_is_refused() -> None:
    """Both digests must be equal. The key session has no effect."""
    reasons = [
        refuse_join(PLAN, MANIFEST, join)
        for join in (
            JOIN,
            replace(JOIN, key_session=7),
            replace(JOIN, plan_digest=plan_with(start={"seed": 8}).digest),
            replace(JOIN, manifest_digest=manifest_of(plan_with(weighting={"name": "rows", "largest_rows": 8})).digest),
            replace(JOIN, plan_digest=MANIFEST.digest, manifest_digest=PLAN.digest),
        )
    ]

    assert reasons == [
        None,
        None,
        "the site agreed to another plan",
        "the tensors that the site would send differ from the plan",
        "the site agreed to another plan",
    ]
