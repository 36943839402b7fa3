"""The settings of methods, and what can be composed of them."""

from __future__ import annotations

import dataclasses
from itertools import permutations
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from protos.plan.methods import Composition, MethodChoice, method_names


def chosen(document: dict[str, Any]) -> Any:
    """The method that a plan names."""
    return TypeAdapter[Any](MethodChoice).validate_python(document)


def composed(*documents: dict[str, Any] | str) -> Composition:
    """A composition of methods, named or with settings."""
    of = [{"name": entry} if isinstance(entry, str) else entry for entry in documents]
    composition = chosen({"name": "composition", "of": tuple(of)})
    assert isinstance(composition, Composition)
    return composition


@pytest.mark.parametrize(
    "document",
    [
        {"name": "fedprox", "strengh": 0.1},
        {"name": "fedprox", "strength": 0.0},
        {"name": "fedprox", "strength": float("nan")},
        {"name": "global-layers", "update_rate": 0.0},
        {"name": "global-layers", "update_rate": 1.5},
        {"name": "fedadam", "first_decay": 1.0},
        {"name": "fedadam", "offset": 0.0},
        {"name": "fedadagrad", "second_decay": 0.5},
        {"name": "moon", "temperature": 0.0},
        {"name": "fedrep", "head_epochs": 0},
        {"name": "pfedme", "inner_steps": True},
        {"name": "apfl", "share": 1.1},
        {"name": "player-fl", "threshold": 1.0},
        {"name": "fedavgg"},
        {"name": "composition"},
        {"name": "composition", "of": ()},
        {"name": "composition", "of": ({"name": "fedprox"},)},
        {"name": "composition", "of": ({"name": "composition", "of": ({"name": "fedprox"}, {"name": "moon"})},) * 2},
    ],
    ids=str,
)
def test_a_misspelt_or_impossible_setting_is_refused(document: dict[str, Any]) -> None:
    """A key that a method does not have, or a number it cannot bear, never becomes a method."""
    with pytest.raises(ValidationError):
        chosen(document)


@pytest.mark.parametrize(
    "of",
    [
        ("global-layers", "fedprox"),
        ("player-fl", "ditto"),
        ("fedadam", "fenda-fl"),
        ("fedper", "fedprox", "moon"),
        ("fedavg", "fedbn"),
        ("fedper", "fedrep"),
        ("player-fl", "scaffold"),
    ],
    ids=str,
)
def test_the_order_of_a_composition_matters_to_no_ingredient(of: tuple[str, ...]) -> None:
    """However its methods are listed, a composition is made of the same ingredients."""
    made = [composed(*order).method() for order in permutations(of)]

    assert len({dataclasses.replace(method, penalties=()) for method in made}) == 1
    assert len({frozenset(method.penalties) for method in made}) == 1


CLASHES: list[tuple[tuple[dict[str, Any] | str, ...], str]] = [
    (("global-layers", "fedper"), "global-layers and fedper both say which parameters are federated"),
    (("ditto", "apfl"), "ditto and apfl both say how a site trains in one round"),
    (("fedadam", "fedyogi"), "fedadam and fedyogi both say how the coordinator uses the aggregate"),
    (
        ({"name": "global-layers", "update_rate": 0.5}, {"name": "global-layers", "update_rate": 0.25}),
        "both say how a site takes in shared values",
    ),
    (({"name": "local-adaptation", "fine_tuning_epochs": 3}, "fedbabu"), "both say the fine-tuning at the end"),
    (("fedprox", {"name": "fedprox", "strength": 1.0}), "two methods add the same penalty"),
    (("fedprox", "fedprox"), "two methods add the same penalty"),
    (("local", "fedprox"), "local shares nothing of a network, so nothing can be composed with it"),
    (("scaffold", "ditto"), "scaffold and ditto both say how a site trains in one round"),
    (("player-fl", "fedbn"), "player-fl and fedbn both say which parameters are federated"),
]


@pytest.mark.parametrize(("of", "reason"), CLASHES, ids=str)
def test_methods_that_decide_the_same_thing_are_refused(of: tuple[str, ...], reason: str) -> None:
    """The refusal names both methods, or the ingredient that both set, and what to do."""
    with pytest.raises(ValidationError, match=reason):
        composed(*of)


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ({"name": "fedavg"}, ("fedavg",)),
        ({"name": "composition", "of": ({"name": "fedprox"}, {"name": "fedper"})}, ("fedprox", "fedper")),
    ],
)
def test_a_policy_is_asked_for_every_name(document: dict[str, Any], names: tuple[str, ...]) -> None:
    """A composition goes by the names of its methods, since a hospital allows methods one by one."""
    assert method_names(chosen(document)) == names
