"""Every fault of a table is found before the first round, and an ordinary table passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from protos.plan.documents import parse_document
from site_agent.desk.examination.examine import Examination, examine
from site_agent.hospital import Split
from site_agent.trainer.data.contract import Contract, read_contract
from site_agent.trainer.data.tables import Survey, Table, survey_table
from tests.for_each import for_each

REPOSITORY = Path(__file__).parents[4]
HEART = REPOSITORY.parent / "shared" / "data" / "heart"
needs_heart = pytest.mark.skipif(not HEART.is_dir(), reason="the shared public tables are not here")
CONTRACT = """
format: {header: true}
columns:
  - {name: patient, role: patient}
  - {name: age, role: feature, type: numeric, unit: years}
  - {name: chol, role: feature, type: numeric, missing: median}
  - {name: sex, role: feature, type: binary, codes: [0, 1], labels: [female, male], same_for_patient: true}
  - {name: ward, role: group, codes: [a, b]}
  - {name: ill, role: target, task: binary, positive: [1], negative: [0], positive_name: ill, negative_name: well}
"""
ROWS = 240


@pytest.fixture
def table() -> Table:
    """An ordinary table: three features that say a little, two wards, as many ill as well."""
    generator, ill = np.random.default_rng(7), (np.arange(ROWS) % 2).astype(np.float64)
    features = {
        "age": np.round(generator.normal(60 + 3 * ill, 10), 1),
        "chol": np.round(generator.normal(220, 30, size=ROWS)),
        "sex": generator.integers(0, 2, size=ROWS).astype(np.float64),
    }
    return Table(
        contract=_contract(CONTRACT),
        rows=ROWS,
        features=MappingProxyType(features),
        target=ill,
        patients=tuple(f"Zebra{row}" for row in range(ROWS)),
        group_positions=MappingProxyType({"ward": (np.arange(ROWS) // 2 % 2).astype(np.float64)}),
    )


def _contract(text: str) -> Contract:
    return parse_document(text.encode(), Contract, source="contract.yaml", consequence="")


def _examined(table: Table) -> Examination:
    return examine(Survey(table=table, mistakes=()), Split(seed=0))


def _changed(table: Table, **features: np.ndarray) -> Table:
    return replace(table, features=MappingProxyType({**table.features, **features}))


def _keys(examination: Examination, level: str) -> list[str]:
    return [finding.key for finding in examination.findings if finding.level == level]


def test_an_ordinary_table_passes(table: Table) -> None:
    """No error and no warning; patients are counted and no part shares one."""
    examination = _examined(table)
    assert _keys(examination, "error") == []
    assert _keys(examination, "warning") == []
    assert examination.patients == ROWS
    assert examination.parts is not None
    assert sum(part.rows for part in examination.parts) == ROWS


Change = Callable[[Table], Table]


def _first(values: np.ndarray, count: int, value: float) -> np.ndarray:
    changed = values.copy()
    changed[:count] = value
    return changed


def _marked(table: Table, count: int, value: float) -> Table:
    return _changed(table, chol=_first(table.features["chol"], count, value))


def _regressed(table: Table) -> Table:
    contract = _contract(CONTRACT.split("binary, pos")[0] + "regression}")
    return replace(table, contract=contract, target=_first(table.features["chol"], 9, 999))


def _coded(table: Table, codes: str) -> Table:
    return replace(table, contract=_contract(CONTRACT.replace("[0, 1]", codes)))


def _twice(table: Table) -> Table:
    """Rows 0 and 1 of one patient, equal in all that is read."""
    features = {name: np.concatenate([[values[0]], [values[0]], values[2:]]) for name, values in table.features.items()}
    assert table.target is not None
    assert table.patients is not None
    target = np.concatenate([[table.target[0]], [table.target[0]], table.target[2:]])
    patients = (table.patients[0], *table.patients[0:1], *table.patients[2:])
    return replace(table, features=MappingProxyType(features), target=target, patients=patients)


def _one_identifier_for_two(table: Table) -> Table:
    sex = table.features["sex"].copy()
    sex[:2] = (0, 1)
    assert table.patients is not None
    return replace(_changed(table, sex=sex), patients=(table.patients[0], *table.patients[:1], *table.patients[2:]))


def _named(table: Table, name: str) -> Table:
    contract, features = _contract(CONTRACT.replace("age", name)), {**table.features, name: table.features["age"]}
    return replace(table, contract=contract, features=MappingProxyType(features))


LEAK = ("warning", "predicts-alone:chol")
CHANGES: dict[str, tuple[Change, str, str]] = {
    "all missing": (lambda t: _changed(t, chol=np.full(ROWS, np.nan)), "error", "error:chol"),
    "mostly missing": (lambda t: _marked(t, 130, np.nan), "warning", "mostly-missing:chol"),
    "constant": (lambda t: _changed(t, age=np.full(ROWS, 50.5)), "warning", "constant:age"),
    "999 for no outcome": (_regressed, "warning", "disguised:ill:999"),
    "zero for not known": (lambda t: _marked(t, 9, 0), "warning", "disguised:chol:0"),
    "999 for not known": (lambda t: _marked(t, 9, 999), "warning", "disguised:chol:999"),
    "days among codes": (lambda t: _coded(t, '["1-2", "3-Jan"]'), "warning", "dated:sex"),
    "units": (lambda t: _coded(t, "[kg, lb]"), "warning", "units:sex"),
    "y and yes": (lambda t: _coded(t, '["Y", "yes"]'), "warning", "two-spellings:sex"),
    "a lost decimal point": (lambda t: _marked(t, 2, 2200), "warning", "far:chol"),
    "a leak": (lambda t: _changed(t, chol=t.features["chol"] + 60 * t.target), *LEAK),
    "a leak by absence": (lambda t: _changed(t, chol=np.where(t.target, np.nan, t.features["chol"])), *LEAK),
    "a leak that turns round": (
        lambda t: _changed(t, chol=np.where(t.target, 220, t.features["chol"] + 90 * (-1) ** (np.arange(ROWS) // 2))),
        *LEAK,
    ),
    "a number of the patient": (lambda t: _changed(t, chol=1e6 + np.arange(ROWS) * 7919), "warning", "identifier:chol"),
    "a name of the patient": (lambda t: _named(t, "pid"), "warning", "identifier:pid"),
    "a row twice": (_twice, "warning", "duplicates"),
    "a second row of few": (
        lambda t: replace(_twice(t), contract=_contract(CONTRACT.replace(", same_for_patient: true", ""))),
        *("warning", "identifiers-again"),
    ),
    "two people": (_one_identifier_for_two, "error", "error:sex"),
    "few of a class": (lambda t: replace(t, target=1.0 * (np.arange(ROWS) % 24 == 0)), "warning", "few-of-class:ill"),
    "one class": (lambda t: replace(t, target=np.zeros(ROWS)), "error", "error:ill"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_wrong_is_found(table: Table, name: str) -> None:
    """Each thing that can be wrong with a table has its finding, at the level that its danger asks for."""
    change, level, key = CHANGES[name]
    examination = _examined(change(table))
    assert key in _keys(examination, level)
    assert "Zebra" not in repr(examination) + str(examination.findings)


@pytest.mark.parametrize("part", ["cell", "order", "contract", "split"])
def test_whatever_changes_changes_the_digest(table: Table, part: str) -> None:
    """One cell, the order of rows, a note in the contract, or another seed: a person has to look again."""
    before, ages = _examined(table).digest, table.features["age"]
    changed = {
        "cell": lambda: _examined(_changed(table, age=_first(ages, 1, 61.25))),
        "order": lambda: _examined(_changed(table, age=ages[::-1])),
        "contract": lambda: _examined(
            replace(table, contract=_contract(CONTRACT.replace("name: age", "name: age, note: new")))
        ),
        "split": lambda: examine(Survey(table=table, mistakes=()), Split(seed=1)),
    }
    assert changed[part]().digest != before
    assert _examined(table).digest == before


@needs_heart
@for_each("seed", range(5))
def test_the_leak_of_faisalabad_is_found(seed: int) -> None:
    """Follow-up ends with death; it is pointed out whichever rows test, and no other column is."""
    contract = read_contract(REPOSITORY / "deploy" / "data" / "faisalabad.yaml")
    examination = examine(survey_table(HEART / "faisalabad.csv", contract), Split(seed=seed))
    assert _keys(examination, "warning") == ["follow-up:time", "predicts-alone:time"]


@pytest.mark.parametrize(("name", "is_entry"), [("tstart", True), ("age", False)])
def test_a_time_of_entry_is_pointed_out(table: Table, name: str, is_entry: bool) -> None:
    """Left truncation has no place in the Cox model here, and nobody would see that its rows count from time 0."""
    text = CONTRACT.replace("age", name) + "  - {name: time, role: follow-up, unit: days}\n"
    times = _first(np.full(ROWS, 200.0) + np.arange(ROWS) % 7, 9, 999)
    timed = replace(_named(table, name), contract=_contract(text), follow_up=times)
    assert _keys(_examined(timed), "warning") == ["disguised:time:999", *[f"entry:{name}"] * is_entry]


@needs_heart
@pytest.mark.parametrize(("name", "file"), [("cleveland", "cleveland.data"), ("south-africa", "sa.data")])
def test_two_heart_studies_pass_as_they_are(name: str, file: str) -> None:
    """Nothing is pointed out where nothing is wrong, 63.0 and all."""
    contract = read_contract(REPOSITORY / "deploy" / "data" / f"{name}.yaml")
    assert examine(survey_table(HEART / file, contract), Split(seed=0)).findings == ()
