"""Impossible combinations are refused with their reason, and possible ones are accepted."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from pydantic import ValidationError

from protos.plan.methods import NETWORK_METHODS
from protos.plan.plan import Plan
from tests.protos.examples import COMPANIONS, PLAIN_DESCENT, TWO_COLUMNS, TWO_EXTRACTORS, plan_of_method

ROWS: dict[str, Any] = {"weighting": {"name": "rows", "largest_rows": 64}}
CHAIN: dict[str, Any] = {"architecture": {"name": "dense", "hidden": [4, 3]}}
LOGISTIC: dict[str, Any] = {"architecture": {"name": "dense", "hidden": []}}
NAMED: dict[str, Any] = {
    "architecture": {"name": "named-tensors", "tensors": [{"name": "body.weight", "shape": [3], "bound": 0.5}]}
}
DESCENT: dict[str, Any] = {"optimiser": PLAIN_DESCENT}
HALF = {"name": "global-layers", "update_rate": 0.5}


def of(*methods: str | dict[str, Any]) -> dict[str, Any]:
    """A method by its name, or a composition of several."""
    entries = [{"name": entry} if isinstance(entry, str) else entry for entry in methods]
    return entries[0] if len(entries) == 1 else {"name": "composition", "of": entries}


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
    "a prefix of two extractors": (of("player-fl"), {"architecture": TWO_EXTRACTORS}, "its layers have no order"),
    "a layer that is not there": (
        of({"name": "global-layers", "layers": ["body.layer9"]}),
        {},
        "has no layer named body.layer9",
    ),
    "all layers by name": (
        of({"name": "global-layers", "layers": ["input.layer1", "body.layer2", "head.layer3"]}),
        CHAIN,
        "no layer would stay private",
    ),
    "layers of named tensors": (
        of({"name": "global-layers", "layers": ["body.weight"]}),
        NAMED,
        "cannot also list layers",
    ),
    "all layers as a prefix": (of({"name": "player-fl", "layers": 3}), CHAIN, "the method would share 3 layers"),
    "a random prefix of named tensors": (of("player-fl-random"), NAMED, "needs the setting layers: sequence"),
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
    "a personal copy of what is taken in by half": (of(HALF, "ditto"), {}, "load all shared values unchanged"),
    "a mixture with what is taken in by half": (of(HALF, "apfl"), {}, "load all shared values unchanged"),
    "an inner problem around what is taken in by half": (of(HALF, "pfedme"), {}, "load all shared values unchanged"),
    "a penalty on the common column": (
        of("chfl", "fedprox"),
        {"architecture": TWO_COLUMNS},
        "chfl cannot be combined with a penalty",
    ),
    "a penalty in the inner problem": (of("pfedme", "fedprox"), CHAIN, "cannot be combined with another penalty"),
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
    "control variates at a falling rate": (
        of("scaffold"),
        {"optimiser": PLAIN_DESCENT | {"rate_schedule": {"name": "cosine"}}},
        "the learning rate must be constant",
    ),
    "control variates by rows": (of("scaffold"), ROWS, "all sites must have the same weight"),
    "control variates with a penalty": (
        of("scaffold", "fedprox"),
        DESCENT,
        "would include the gradient of the penalty",
    ),
    "control variates of a half": (
        of("scaffold", HALF),
        DESCENT,
        "control variates need sites that load all shared values unchanged",
    ),
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
    """Four things wrong with SCAFFOLD: four reasons in one refusal."""
    keys = ROWS | {"optimiser": {"name": "adam", "learning_rate": 0.1, "rate_schedule": {"name": "cosine"}}}

    with pytest.raises(ValidationError) as refusal:
        plan_of(of("scaffold", "fedprox"), **keys)

    (error,) = refusal.value.errors()
    reasons = error["ctx"]["error"].found
    assert len(reasons) == 4
    for word in (
        "sgd without momentum",
        "the learning rate must be constant",
        "all sites must have the same weight",
        "the gradient of the penalty",
    ):
        assert len([reason for reason in reasons if word in reason]) == 1


ALLOWED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a proximal term with Global Layers": (of("global-layers", "fedprox"), {}),
    "PLayer-FL's split with Ditto": (of("player-fl", "ditto"), CHAIN),
    "FedAdam's rule with FENDA-FL": (of("fedadam", "fenda-fl"), {"architecture": TWO_EXTRACTORS}),
    "control variates of inner layers": (of("global-layers", "scaffold"), DESCENT),
    "control variates of chosen layers": (of("player-fl", "scaffold"), DESCENT | CHAIN),
    "control variates under half the server rate": (of({"name": "scaffold", "rate": 0.5}), DESCENT),
    "two penalties": (of("fedprox", "moon"), CHAIN),
    "shared values by half with a penalty": (of(HALF, "fedprox"), {}),
    "logistic regression for all": (of("fedavg"), LOGISTIC),
    "shared inner layers of a network of one's own": (of("global-layers"), NAMED),
    "a mixture by rows": (of("apfl"), ROWS),
    "a personal model of a network of one's own": (of("ditto"), NAMED),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_the_mathematics_allows_is_a_plan(name: str) -> None:
    """Methods combine wherever no rule forbids it."""
    method, keys = ALLOWED[name]

    assert plan_of(method, **keys).ingredients


def plan_of(method: dict[str, Any], **keys: Any) -> Plan:
    """A plan of a method or composition, with what its methods need and the keys do not say."""
    names = [entry["name"] for entry in method.get("of", [method])]
    needed = {key: value for name in names for key, value in COMPANIONS.get(name, {}).items()}
    return plan_of_method(method, **needed | keys)


@pytest.mark.parametrize("pair", list(combinations(NETWORK_METHODS, 2)), ids="-".join)
def test_every_pair_of_methods_is_a_plan_or_has_a_reason(pair: tuple[str, str]) -> None:
    """Any composition of two methods gives a plan that knows its method, or a refusal in words, but never a defect."""
    try:
        plan = plan_of(of(*pair))
    except ValidationError as refusal:
        (error,) = refusal.errors()
        assert len(str(error["msg"])) > 30
        return

    assert plan.ingredients is not None
