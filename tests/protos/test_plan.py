"""The plan: one digest for one agreement, and no agreement that is unsafe or impossible."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from protos.errors import ProtocolError
from protos.plan.canonical import digest
from protos.plan.manifest import manifest_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import plan_from_json, plan_from_wire
from protos.plan.plan_head import LARGEST_PLAN_BYTES
from protos.plan.prior_plan import MOST_SUMS, PriorPlan
from protos.plan.statistics_plan import StatisticsPlan
from tests.for_each import for_each
from tests.protos.examples import (
    FEDERATED_AVERAGING,
    LOCAL_ONLY,
    METHODS,
    NETWORK,
    listed,
    plan_document,
    plan_of_method,
    plan_with,
    table_one_of,
)

AGE: dict[str, Any] = {"name": "age", "low": 0.0, "high": 120.0}
CONCEPTS = [AGE | {"kind": "number", "definition": "Age."}]
PROMISE = {"unit": "patient", "epsilon": 1.0, "delta": 1e-5, "clip": 2.0}
HEAD: dict[str, Any] = {
    "study": "lung", "version": 2, "sites": listed(5), "assumed_colluders": 0, "masking": {"clipping_range": 4.0},
    "timing": {"grace_seconds": 60.0},
    "question": dict.fromkeys(("outcome", "population", "time", "use", "responsible", "approval_number"), "as agreed"),
}  # fmt: skip
# For each kind of plan: a plan, and another value of each key.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "network": (
        {"sites": listed(4), "method": FEDERATED_AVERAGING, "columns": ["age"], "outputs": 1},
        HEAD
        | {
            "method": {"name": "fedprox"}, "architecture": NETWORK | {"latent": 16}, "columns": ["age", "chol"],
            "concepts": CONCEPTS, "outputs": 3,
            "schedule": {"aggregate": "every-epoch", "epochs": 2, "batches_per_epoch": 4},
            "optimiser": {"name": "adamw", "learning_rate": 0.002}, "loss": {"name": "focal"},
            "weighting": {"name": "rows", "largest_rows": 1024}, "start": {"name": "own", "seed": 7},
            "checkpoint": "latest",
        },
    ),
    "statistics": (
        table_one_of(AGE) | {"smallest_cell": 1, "sites": listed(4)},
        HEAD
        | {
            "concepts": table_one_of(AGE | {"high": 99.0})["concepts"],
            "analyses": [{"name": "others", "table_one": {"columns": ["age"]}}],
            "smallest_cell": 5,
            "newton_rounds": 3,
            "fewest_sites": 4,
            "largest_rows": 1000,
            "rows_per_unknown": 2.0,
            "privacy": PROMISE,
        },
    ),
    "prior": (
        {"kind": "prior", "concepts": CONCEPTS, "sites": listed(4)},
        HEAD
        | {
            "concepts": [CONCEPTS[0] | {"name": "chol"}],
            "outcome": {"task": "regression", "low": 0.0, "high": 9.0},
            "ridge": 1.0,
            "newton_rounds": 3,
            "fewest_sites": 3,
            "largest_rows": 1000,
            "rows_per_unknown": 2.0,
            "privacy": PROMISE,
        },
    ),
}  # fmt: skip
RECORDS = {"network": NetworkPlan, "statistics": StatisticsPlan, "prior": PriorPlan}
EXACT: dict[str, Any] = {"name": "rows", "largest_rows": 1024, "exact": True}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])
@for_each("rounds", range(2, 8, 2))
def test_a_plan_survives_the_wire(method: dict[str, Any], rounds: int) -> None:
    """An announced plan is read back as the same plan, with the same bytes and digest."""
    schedule = {"aggregate": "every-epoch", "epochs": rounds, "batches_per_epoch": 3}
    plan = plan_of_method(method, schedule=schedule)

    read = plan_from_wire(plan.canonical)

    assert read == plan
    assert read.canonical == plan.canonical
    assert read.digest == plan.digest == digest("plan", plan.canonical)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_another_value_to_be_tried(kind: str) -> None:
    """The list has every field of each kind, so a new field cannot miss the digest. No kind has more than 20 keys."""
    fields = RECORDS[kind].model_fields.keys()

    assert KINDS[kind][1].keys() | {"kind"} | ({"privacy"} if kind == "network" else set()) == fields
    assert len(fields) <= 20


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, (_, others) in KINDS.items() for field in others])
def test_each_field_is_part_of_the_digest(kind: str, field: str) -> None:
    """Two plans that differ in one field only have different digests and different runs."""
    usual, others = KINDS[kind]
    before, after = plan_with(**usual), plan_with(**usual | {field: others[field]})

    differing = {name for name in RECORDS[kind].model_fields if getattr(before, name) != getattr(after, name)}

    assert differing == {field}
    assert before.digest != after.digest
    assert before.run_name != after.run_name


def test_defaults_are_written_out_before_they_are_agreed() -> None:
    """A plan that names a default and one that leaves it out are the same agreement."""
    silent = plan_with()
    spoken = plan_with(masking={"required": True}, checkpoint="local", assumed_colluders=1)

    assert spoken.digest == silent.digest
    assert set(json.loads(silent.canonical)) == set(NetworkPlan.model_fields)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"assumed_colluders": 2}, "at least 4 sites must contribute"),
        ({"sites": listed(2)}, "at least 3 sites must contribute"),
        ({"sites": listed(2), "masking": {"required": False}}, "at least 3 sites must contribute"),
        ({"assumed_colluders": -1}, "greater than or equal to 0"),
        ({"sites": []}, "at least 1 item"),
        ({"sites": listed(101)}, "at most 100 items"),
        ({"sites": [*listed(3), listed(4)[3] | {"name": "site-000"}]}, "the plan lists two sites with the same name"),
        ({"sites": [*listed(3), listed(1)[0] | {"name": "other"}]}, "same identity key"),
        ({"sites": [{"name": "Upper", "identity": listed(1)[0]["identity"]}]}, "match pattern"),
        ({"sites": [{"name": "a\n", "identity": listed(1)[0]["identity"]}]}, "match pattern"),
        ({"sites": [{"name": "a", "identity": listed(1)[0]["identity"] + "\n"}]}, "match pattern"),
        ({"sites": [{"name": "a", "identity": "abcd"}]}, "match pattern"),
        ({"columns": ["age"]}, "stay private with global-layers"),
        ({"outputs": 2}, "stay private with global-layers"),
        ({"method": LOCAL_ONLY, "columns": ["age"]}, "stay private with local"),
        ({"method": FEDERATED_AVERAGING, "outputs": 1}, "size depends on columns. List the columns"),
        ({"method": FEDERATED_AVERAGING, "columns": ["age"]}, "size depends on outputs. List the outputs"),
        ({"method": FEDERATED_AVERAGING, "columns": ["a", "a"], "outputs": 1}, "the plan lists a column twice"),
        ({"method": {"name": "fedavgg"}}, "does not match any of the expected tags"),
        ({"method": {"name": "fedavg", "strength": 1}}, "Extra inputs are not permitted"),
        ({"method": {"name": "global-layers", "update_rate": 0}}, "greater than 0"),
        ({"method": {"name": "global-layers", "update_rate": 1.5}}, "less than or equal to 1"),
        (
            {"schedule": {"aggregate": "every-batch", "epochs": 2, "batches_per_epoch": 1, "epochs_per_round": 2}},
            "can only be used with",
        ),
        (
            {"schedule": {"aggregate": "every-round", "epochs": 5, "batches_per_epoch": 1, "epochs_per_round": 2}},
            "multiple",
        ),
        ({"schedule": {"aggregate": "every-batch", "epochs": 0, "batches_per_epoch": 1}}, "greater than or equal to 1"),
        (
            {"schedule": {"aggregate": "every-batch", "epochs": 10**5, "batches_per_epoch": 10**5}},
            "at most 2147483648 rounds",
        ),
        ({"weighting": {"name": "rows", "largest_rows": 1000}}, "power of two"),
        ({"weighting": {"name": "rows"}}, "Field required"),
        ({"weighting": EXACT | {"largest_rows": 1 << 25}}, "largest_rows is at most 16777216"),
        ({"weighting": EXACT, "masking": {"required": False}}, "exact row counts need masks"),
        ({"masking": {"clipping_range": 3.0}}, "power of two"),
        ({"masking": {"clipping_range": 2048.0}}, "less than or equal to 1024"),
        ({"optimiser": {"name": "sgd", "learning_rate": 0}}, "greater than 0"),
        ({"optimiser": {"name": "sgd", "learning_rate": 1, "momentum": 1}}, "less than 1"),
        ({"timing": {"grace_seconds": 0}}, "greater than 0"),
        ({"start": {"seed": -1}}, "greater than or equal to 0"),
        ({"start": {"seed": 1 << 63}}, "less than"),
        ({"start": {"seed": "7"}}, "valid integer"),
        ({"start": {"seed": 7.0}}, "valid integer"),
        ({"version": True}, "valid integer"),
        ({"notes": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_bad_plans_are_refused(changes: dict[str, Any], reason: str) -> None:
    """A plan that is unsafe, impossible or misspelt is refused."""
    with pytest.raises(ValidationError, match=reason):
        plan_with(**changes)


@pytest.mark.parametrize("field", sorted(plan_document()))
def test_what_decides_has_no_default(field: str) -> None:
    """Sites, weighting and everything else that a study consists of has to be written."""
    document = plan_document()
    del document[field]

    with pytest.raises(ValidationError, match=r"Field required|Unable to extract tag"):
        plan_from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("schedule", "rounds", "steps"),
    [
        ({"aggregate": "every-batch", "epochs": 3, "batches_per_epoch": 4}, 12, 1),
        ({"aggregate": "every-epoch", "epochs": 3, "batches_per_epoch": 4}, 3, 4),
        ({"aggregate": "every-round", "epochs": 6, "batches_per_epoch": 4, "epochs_per_round": 2}, 3, 8),
        ({"aggregate": "every-round", "epochs": 1, "batches_per_epoch": 1}, 1, 1),
    ],
)
def test_rounds_and_steps_make_up_the_whole_training(schedule: dict[str, Any], rounds: int, steps: int) -> None:
    """Rounds times steps is epochs times batches, however often the sites aggregate."""
    plan = plan_with(schedule=schedule)

    assert (plan.schedule.rounds, plan.schedule.steps_per_round) == (rounds, steps)
    assert rounds * steps == plan.schedule.epochs * plan.schedule.batches_per_epoch


@pytest.mark.parametrize(
    ("method", "changes", "rounds"),
    [
        ({"name": "global-layers"}, {}, 8), ({"name": "global-layers"}, {"checkpoint": "latest"}, 8),
        ({"name": "global-layers"}, {"checkpoint": "global"}, 9), ({"name": "player-fl"}, {}, 9),
        ({"name": "player-fl"}, {"checkpoint": "global"}, 10), ({"name": "player-fl-random"}, {}, 8),
    ],
)  # fmt: skip
def test_rounds_that_measure_come_beside_those_of_training(
    method: dict[str, Any], changes: dict[str, Any], rounds: int
) -> None:
    """A probe and a validation of the last model add one round each, where the plan has them."""
    assert plan_of_method(method, **changes).rounds == rounds


CANONICAL = plan_with().canonical
ZERO_MOMENTUM = plan_with(optimiser={"name": "sgd", "learning_rate": 0.1, "momentum": 0.0}).canonical


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        CANONICAL + b"\n",
        b" " + CANONICAL,
        CANONICAL.replace(b'"seed":7', b'"seed":7.0'),
        CANONICAL.replace(b'"seed":7', b'"seed":7,"seed":7'),
        CANONICAL.replace(b'"seed":7', b'"extra":1,"seed":7'),
        CANONICAL.replace(b"0.001", b"1e-3"),
        ZERO_MOMENTUM.replace(b'"momentum":0.0', b'"momentum":-0.0'),  # a file of the plan reads 0.0, another digest
        CANONICAL.replace(b'"heart"', b'"\\u0068eart"'),
        json.dumps(plan_document()).encode(),
        json.dumps(json.loads(CANONICAL), sort_keys=True, indent=1).encode(),
        b"[" * 100_000,
        CANONICAL + b" " * (LARGEST_PLAN_BYTES - len(CANONICAL)),
        CANONICAL + b" " * LARGEST_PLAN_BYTES,
        b"\xff\xfe",
    ],
)
def test_only_the_canonical_bytes_are_a_plan(raw: bytes) -> None:
    """Another spelling, a key twice, a defaulted, too long or broken plan is a ProtocolError."""
    with pytest.raises(ProtocolError, match="Nothing was sent"):
        plan_from_wire(raw)


@settings(max_examples=300)
@given(data=st.data())
def test_a_changed_byte_is_another_plan_or_none(data: st.DataObject) -> None:
    """Any change of an announced plan is refused or gives another digest."""
    raw = bytearray(CANONICAL)
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))

    try:
        plan = plan_from_wire(bytes(raw))
    except ProtocolError:
        return

    assert plan.digest != plan_with().digest


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": {"task": "multi-class", "classes": ["mild", "mild", "severe"]}},
        {"concepts": [CONCEPTS[0] | {"recorded_by": []}]},
    ],
)
def test_a_prior_plan_has_no_class_twice_and_no_concept_of_nobody(changes: dict[str, Any]) -> None:
    """Two regressions would have one name, and a sum would be over no site."""
    plan_from_json(json.dumps({**HEAD, "kind": "prior", "concepts": CONCEPTS}))

    with pytest.raises(ValidationError):
        plan_from_json(json.dumps({**HEAD, "kind": "prior", "concepts": CONCEPTS} | changes))


@pytest.mark.parametrize(("concepts", "codes", "is_allowed"), [(40, 12, True), (43, 13, False), (500, 50, False)])
def test_a_prior_plan_is_counted_before_its_sums_are_listed(concepts: int, codes: int, is_allowed: bool) -> None:
    """Every pair of columns has a sum, so some kilobytes of a plan could fill any memory."""
    listed_concepts = [
        {"kind": "codes", "name": f"c{place}", "definition": "kind", "codes": [f"k{code}" for code in range(codes)]}
        for place in range(concepts)
    ]
    raw = json.dumps({**HEAD, "kind": "prior", "concepts": listed_concepts})
    tracemalloc.start()
    try:
        if is_allowed:
            assert len(manifest_of(plan_from_json(raw)).scalars) > MOST_SUMS // 2
        else:
            before = tracemalloc.get_traced_memory()[0]
            with pytest.raises(ValidationError):
                plan_from_json(raw)
            assert tracemalloc.get_traced_memory()[1] - before < 20 << 20
    finally:
        tracemalloc.stop()
