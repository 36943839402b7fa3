"""Impossible combinations are refused with their reason, and possible ones are accepted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from protos.plan.plan import Plan
from tests.protos.examples import COMPANIONS, PLAIN_DESCENT, TWO_COLUMNS, TWO_EXTRACTORS, plan_of_method

ROWS: dict[str, Any] = {"weighting": {"name": "rows", "largest_rows": 64}}
CHAIN: dict[str, Any] = {"architecture": {"name": "dense", "hidden": [4, 3]}}
LOGISTIC: dict[str, Any] = {"architecture": {"name": "dense", "hidden": []}}
NAMED: dict[str, Any] = {
    "architecture": {"name": "named-tensors", "tensors": [{"name": "body.weight", "shape": [3], "bound": 0.5}]}
}
DESCENT: dict[str, Any] = {"optimiser": PLAIN_DESCENT}


def of(name: str, **settings: Any) -> dict[str, Any]:
    """A method with these settings."""
    return {"name": name} | settings


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "everything of unique columns": (of("fedavg"), {"architecture": TWO_COLUMNS}, "a method cannot share all layers"),
    "unique columns without their procedure": (
        of("fenda-fl"),
        {"architecture": TWO_COLUMNS},
        "and the network columns can only be used together",
    ),
    "two columns for a site alone": (
        of("local"),
        {"architecture": TWO_COLUMNS},
        "and the network columns can only be used together",
    ),
    "columns one after the other in one chain": (
        of("chfl"),
        CHAIN,
        "and the network columns can only be used together",
    ),
    "a prefix of two extractors": (of("player-fl"), {"architecture": TWO_EXTRACTORS}, "have no order"),
    "all layers as a prefix": (of("player-fl", layers=3), CHAIN, "the method would share 3 layers"),
    "a random prefix of named tensors": (of("player-fl-random"), NAMED, "have no order"),
    "private normalisations without any": (of("fedbn"), CHAIN, "no tensor of a known normalisation layer"),
    "private normalisations of named tensors": (of("fedbn"), NAMED, "no tensor of a known normalisation layer"),
    "private lower layers without any": (of("lg-fedavg"), LOGISTIC, "no layer would stay private"),
    "private epochs after single batches": (
        of("fedrep"),
        {"schedule": {"aggregate": "every-batch", "epochs": 2, "batches_per_epoch": 2}},
        "a round must consist of whole epochs",
    ),
    "private epochs in equal steps": (
        of("fedrep"),
        {"schedule": {"aggregate": "every-steps", "rounds": 2, "steps_per_round": 2, "batch_rows": 2}},
        "a round must consist of whole epochs",
    ),
    "control variates with adam": (
        of("scaffold"),
        {"optimiser": {"name": "adam", "learning_rate": 0.1}},
        "without momentum and without weight decay",
    ),
    "control variates with momentum": (
        of("scaffold"),
        {"optimiser": PLAIN_DESCENT | {"momentum": 0.9}},
        "without momentum and without weight decay",
    ),
    "control variates with decay": (
        of("scaffold"),
        {"optimiser": PLAIN_DESCENT | {"weight_decay": 0.1}},
        "without momentum and without weight decay",
    ),
    "control variates by rows": (of("scaffold"), ROWS, "all sites must have the same weight"),
    "two extractors where there is one": (of("perfcl"), CHAIN, "needs a network with two extractors"),
    "extractors that cannot be compared": (
        of("perfcl"),
        {"architecture": TWO_EXTRACTORS | {"unique": [7]}},
        "must have outputs of the same width",
    ),
    "a contrast of an unknown network": (of("moon"), NAMED, "a hospital's own network does not show"),
    "a contrast of inputs": (of("moon"), LOGISTIC, "this network has no hidden layers"),
    "alone with a common checkpoint": (
        of("local"),
        {"checkpoint": "global"},
        "with this method each site trains alone",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_with_its_reason(name: str) -> None:
    """No plan with such a combination becomes a record; the message says why, not only that."""
    method, keys, reason = REFUSED[name]

    with pytest.raises(ValidationError, match=reason):
        plan_of(method, **keys)


def test_all_that_speaks_against_a_plan_is_told_at_once() -> None:
    """Two things wrong with SCAFFOLD: two reasons in one refusal."""
    keys = ROWS | {"optimiser": {"name": "adam", "learning_rate": 0.1}}

    with pytest.raises(ValidationError) as refusal:
        plan_of(of("scaffold"), **keys)

    (error,) = refusal.value.errors()
    reasons = error["ctx"]["error"].found
    assert len(reasons) == 2
    for word in ("sgd without momentum", "all sites must have the same weight"):
        assert len([reason for reason in reasons if word in reason]) == 1


ALLOWED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "control variates under half the server rate": (of("scaffold", rate=0.5), DESCENT),
    "logistic regression for all": (of("fedavg"), LOGISTIC),
    "shared inner layers of a network of one's own": (of("global-layers"), NAMED),
    "a mixture by rows": (of("apfl"), ROWS),
    "a personal model of a network of one's own": (of("ditto"), NAMED),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_the_mathematics_allows_is_a_plan(name: str) -> None:
    """No rule forbids what works."""
    method, keys = ALLOWED[name]

    assert plan_of(method, **keys).ingredients


def plan_of(method: dict[str, Any], **keys: Any) -> Plan:
    """A plan of a method, with what the method needs and the keys do not say."""
    return plan_of_method(method, **COMPANIONS.get(method["name"], {}) | keys)
