"""Whichever part is killed at whichever write, the run ends by itself with the bits of an undisturbed run. The write
points are before and after every call that makes something durable (a sync, a rename), with the name of its content. A
seed draws the stops. Parameters, decisions and every site's chosen model and predictions are compared."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from protos.plan.plan import Plan
from protos.wire.messages import Chunk, KeyAdvert, KeySessionAcknowledgement, SiteMessage
from tests.chaos.in_process import Mortal, plan_of, to_the_end
from tests.federation import StreamEnd
from tests.for_each import in_turns
from tests.laws.catalogue import NAMES

Strikes = Callable[[str, str], bool]
MEASURING: dict[str, Any] = {"checkpoint": "global"}
# Options that a method cannot be planned with: training alone sums nothing.
CANNOT = {"local": set(MEASURING)}
# At which writes a process can be killed in a masked run that measures; each is tried below.
POINTS = [
    f"{role}: {when} {what}"
    for role, writes in {
        "coordinator": (
            "commit of sqlite", "sync of snapshots", "rename of snapshots", "sync of record", "rename of record",
        ),
        "agent": ("commit of audit",),
        "trainer": ("sync of saves", "rename of saves", "commit of sqlite"),
    }.items()
    for what in writes
    for when in ("before", "after")
]  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> None:
    """What the programs say of thousands of deaths is not asked for here."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


def a_plan(method: str, *, is_masked: bool, measures: bool, every_rounds: int) -> Plan:
    """A method's plan that saves after this number of rounds."""
    keys = {key: MEASURING[key] for key in MEASURING if measures and key not in CANNOT.get(method, ())}
    saving = {"save_every_rounds": every_rounds, "save_every_seconds": None}
    masking = {"required": is_masked, "bits": (32, 16)[every_rounds % 2]}
    return plan_of(method, masking=masking, timing=saving, **keys)


def _at_visits(numbers: set[int], point: str | None = None) -> Callable[[Mortal], Strikes]:
    def strikes(network: Mortal) -> Strikes:
        count = -1

        def strike(owner: str, at: str) -> bool:
            nonlocal count
            count += (is_meant := point in (None, at))
            return is_meant and count in numbers

        return strike

    return strikes


# Every third method, in turns masked and not. Continuous integration runs the others.
MASKED_IN_TURNS = [
    pytest.param(
        name, is_masked, id=f"{name}-{'masked' if is_masked else 'clear'}",
        marks=() if number % 3 == 0 and number // 3 % 2 == is_masked else pytest.mark.slow,
    )
    for number, name in enumerate(NAMES)
    for is_masked in (False, True)
]  # fmt: skip


@pytest.mark.parametrize(("method", "is_masked"), MASKED_IN_TURNS)
def test_deaths_change_no_bit_for_any_method(tmp_path: Path, method: str, is_masked: bool) -> None:
    """For the whole catalogue of methods: several parts stop in one run. Every result equals that of an undisturbed
    run."""
    number = NAMES.index(method)
    plan = a_plan(method, is_masked=is_masked, measures=is_masked == number % 2, every_rounds=1 + number % 3)
    expected, _, disk = to_the_end(tmp_path / "undisturbed", plan, number)
    luck = random.Random(2 * number + is_masked)
    numbers = set(luck.sample(range(20, len(disk.points)), 5))

    found, network, _ = to_the_end(tmp_path / "killed", plan, number, _at_visits(numbers))

    assert len(network.deaths) >= 3
    assert found == expected


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Counter[str]]:
    """What a run of Ditto without a death ends in, and how often it visits each point."""
    expected, _, disk = to_the_end(tmp_path_factory.mktemp("undisturbed") / "run", ditto(), 0)
    return expected, Counter(name for _, name in disk.points)


def ditto() -> Plan:
    """The plan of the runs that stop at a named write."""
    return a_plan("ditto", is_masked=True, measures=True, every_rounds=2)


@pytest.mark.parametrize(("point", "third"), in_turns(POINTS, range(3)))
def test_a_death_at_any_kind_of_write_changes_no_bit(
    tmp_path: Path, undisturbed: tuple[dict[str, Any], Counter[str]], point: str, third: int
) -> None:
    """A part that stops at such a point, early, in the middle or late in a run, continues after its restart. The stop
    has no effect on the result."""
    expected, times = undisturbed
    assert times[point]

    found, network, _ = to_the_end(tmp_path / "killed", ditto(), 0, _at_visits({third * times[point] // 3}, point))

    assert network.deaths
    assert found == expected


def _at_message(kind: type[SiteMessage], number: int) -> Callable[[Mortal], Strikes]:
    def strikes(network: Mortal) -> Strikes:
        count, deliver = 0, network._deliver

        def deliver_or_die(name: str, end: StreamEnd, message: SiteMessage) -> None:
            nonlocal count
            count += isinstance(message, kind)
            if count == number and not network.deaths:
                network.kill("coordinator")
            else:
                deliver(name, end, message)

        network._deliver = deliver_or_die  # type: ignore[method-assign]  # the line of this one network
        return lambda owner, point: False

    return strikes


@pytest.mark.parametrize(("kind", "number"), in_turns([KeyAdvert, KeySessionAcknowledgement, Chunk], [1, 3]))
def test_a_coordinator_may_die_between_two_writes_of_the_first_round(
    tmp_path: Path, kind: type[SiteMessage], number: int
) -> None:
    """Sites that keep running still have the first keys, and the restarted coordinator opens new ones."""
    plan = a_plan("fedavg", is_masked=True, measures=False, every_rounds=2)
    expected, _, _ = to_the_end(tmp_path / "undisturbed", plan, 0)

    found, network, _ = to_the_end(tmp_path / "killed", plan, 0, _at_message(kind, number))

    assert network.deaths == ["coordinator"]
    assert found == expected


def test_the_points_are_all_there_are(undisturbed: tuple[dict[str, Any], Counter[str]]) -> None:
    """A durable write of the programs that no test above names would be detected here."""
    assert {name for name in undisturbed[1] if not name.endswith("of other")} == set(POINTS)
