"""The memory of answered values: enough changed rows in every column and pair, no value on disk, a witness in a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from site_agent.trainer import answered_values
from site_agent.trainer.answered_values import (
    MemoryLost,
    ReleasedBefore,
    Values,
    codes_of,
    newest_head,
    numbers_of,
    remember,
    require_head,
    rows_of,
)
from site_agent.trainer.disk import RECORDS, recording
from tests.for_each import for_each

CELL = 5
NONE = float("nan")


def table(rows: int, seed: int = 0) -> dict[str, list[float]]:
    """Two measured columns and a place among two codes."""
    generator = np.random.default_rng(seed)
    return {
        "age": generator.normal(60, 9, rows).tolist(),
        "bmi": generator.normal(27, 4, rows).tolist(),
        "sex": generator.integers(0, 2, rows).astype(float).tolist(),
    }


def columns(rows: Mapping[str, list[float]]) -> dict[str, Values]:
    """The values of the made-up columns."""
    found: dict[str, Values] = {}
    for name, values in rows.items():
        array = np.array(values)
        found |= codes_of(name, array, ("F", "M")) if name == "sex" else numbers_of(name, array, 0.0, 200.0)
    return found


def answers(folder: Path, run: str, rows: Mapping[str, list[float]]) -> bool:
    """Whether the memory lets a run use these rows."""
    try:
        remember(folder, run, columns(rows), CELL)
    except ReleasedBefore:
        return False
    return True


def beside(rows: Mapping[str, list[float]], more: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Both tables' rows, one after the other."""
    return {name: [*values, *more[name]] for name, values in rows.items()}


@for_each("seed", range(20))
def test_a_table_that_grew_answers_from_the_smallest_cell_of_each_code_on(tmp_path: Path, seed: int) -> None:
    """New rows are added, and the rows are in another order. Each code needs as many new rows as the cell."""
    generator = np.random.default_rng(seed)
    before, more = table(40), table(int(generator.integers(0, 20)), seed + 1)
    order = generator.permutation(40 + len(more["age"]))
    after = {name: [values[place] for place in order] for name, values in beside(before, more).items()}
    assert answers(tmp_path, "one", before)

    counts = {more["sex"].count(code) for code in (0.0, 1.0)}
    assert answers(tmp_path, "two", after) == all(count == 0 or count >= CELL for count in counts)


def test_one_changed_row_is_refused_and_no_pair_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six changed columns of one row are one changed row. Pairs would take time, which shows who refuses."""
    compared, real = list[int](), answered_values._are_enough
    monkeypatch.setattr(answered_values, "_are_enough", lambda *them: compared.append(len(them[4])) or real(*them))
    rows = {f"lab{place}": np.random.default_rng(place).normal(size=30).tolist() for place in range(6)}
    assert answers(tmp_path, "one", rows)

    assert not answers(tmp_path, "two", {name: [9.5, *values[1:]] for name, values in rows.items()})
    assert compared == [1] * 18


def test_other_columns_and_other_values_are_free(tmp_path: Path) -> None:
    """A column that no run used, and a table of other patients, answer."""
    assert answers(tmp_path, "one", {"age": table(30)["age"]})

    assert answers(tmp_path, "two", {"bmi": table(30)["bmi"]})
    assert answers(tmp_path, "three", table(30, seed=5))


def drawn(generator: np.random.Generator, kinds: Sequence[int], rows: int) -> np.ndarray[Any, Any]:
    """Rows with columns of few values, many values, mostly one value, and a code that many lack."""
    few, many = generator.integers(0, 6, (rows, 5)), generator.normal(50.0, 9.0, (rows, 5))
    usual, code = few * (many > 52.0), np.where(many > 50.0, 1.0, NONE)
    return np.choose(kinds, [few, many, usual, code])


def test_counts_decide_as_the_rows_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick counts refuse the same column or pair as a comparison of all rows, for any two tables."""
    counted, found = answered_values._surely_enough, set()
    for seed in range(100):
        generator = np.random.default_rng(seed)
        kinds, rows, digests = generator.integers(0, 4, 5), int(generator.integers(8, 60)), []
        old = drawn(generator, kinds, rows)
        new = np.concatenate([old, drawn(generator, kinds, int(generator.integers(0, 40)))])
        changed = generator.choice(rows, int(generator.integers(0, rows)), replace=False)
        new[changed] = (new[changed], drawn(generator, kinds, len(changed)), new[changed] * (1 + 1e-9))[seed % 3]
        for table in (new, old):
            values = {f"c{k}": Values(values=one, hides=one < 60.0) for k, one in enumerate(table.T)}
            own = {name: answered_values._digests(name.encode() * 16, one) for name, one in values.items()}
            visits = np.arange(len(table)) // (1 + seed % 5 // 3)
            digests.append(own | {"": visits.astype(np.uint64) ** 5} if seed % 4 else own)
        codes, results = {f"c{k}" for k in range(5) if kinds[k] == 3}, []
        for rule in (counted, lambda new, *_: np.zeros((new.shape[1],) * 2, np.bool_)):
            monkeypatch.setattr(answered_values, "_surely_enough", rule)
            results.append(answered_values._differing("run", *digests, codes, CELL))
        assert results[0] == results[1], seed
        found.add(("with" in " ".join(results[0].too_few), bool(results[0].too_few)))
    assert found == {(False, False), (False, True), (True, True)}


@for_each("patients", (1, 2, CELL - 1, CELL))
def test_changed_rows_count_as_their_patients(patients: int, tmp_path: Path) -> None:
    """Ten new visits of a few patients are refused. So are all if only one of the tables names patients."""
    old, visits = ({name: found[name] for name in ("age", "bmi")} for found in (table(30), table(4 * CELL, seed=9)))
    before = [f"P{row // 2}" for row in range(30)]
    after = [*before, *(f"P{row % patients}" for row in range(4 * CELL))]
    for folder, first in ((tmp_path / "named", before), (tmp_path / "first unnamed", None)):
        remember(folder, "one", columns(old), CELL, first)
        try:
            remember(folder, "two", columns(beside(old, visits)), CELL, after)
            assert (patients, first) == (CELL, before)
        except ReleasedBefore:
            assert patients < CELL or first is None


@for_each("place", ("first", "last"))
@for_each("names", ("P", "another "))
def test_a_patient_does_not_hide_behind_equal_rows_of_others(place: str, names: str, tmp_path: Path) -> None:
    """Visits of one patient that equal those of others are one patient's, wherever they stand, with new names too."""
    own, others = [("X", 1.0)] * 12, [(f"P{row}", float(row % 2)) for row in range(60)]
    whole = own + others if place == "first" else others + own
    for folder, rows in ((tmp_path / "own", others), (tmp_path / "ten others", [*own, *others[20:]])):
        remember(
            folder, "one", codes_of("sex", np.array([code for _, code in whole]), "FM"), CELL, [n for n, _ in whole]
        )
        now = [name if names == "P" else names + name for name, _ in rows]
        try:
            remember(folder, "two", codes_of("sex", np.array([code for _, code in rows]), "FM"), CELL, now)
            assert (folder.name, names) == ("ten others", "P")
        except ReleasedBefore:
            assert (folder.name, names) != ("ten others", "P")


@for_each("near", (0.0, 1e-5))
@for_each("names", ("P", "another "))
@for_each("exchanged", (False, True))
def test_corrected_visits_of_one_patient_do_not_hide(near: float, names: str, exchanged: bool, tmp_path: Path) -> None:
    """They nearly equal visits of others, while two cells are exchanged, names change, and a second column does."""
    visits = np.arange(1.0, 14.0)
    others = np.concatenate([100.0 + 13 * place + visits for place in range(10)])
    whose = [*np.repeat([f"P{place}" for place in range(10)], 13).tolist(), *["X"] * 10, "B", "C"]
    late = (103.0 + 13 * np.arange(10.0)) * (1 + near)
    for run, own, two in (("one", 30.0 + visits[:10], [41.0, 42.0]), ("two", late, [42.0, 41.0])):
        measured = np.concatenate([others, own, two if exchanged else [41.0, 42.0]])
        used = numbers_of("crea", measured, 0.0, 300.0) | rows_of(np.unique(whose, return_inverse=True)[1])
        used |= numbers_of("days", np.arange(float(len(measured))) + 365 * (run == "two"), 0.0, 900.0)
        try:
            remember(tmp_path, run, used, CELL, whose if run == "one" else [names + name for name in whose])
            assert run == "one"
        except ReleasedBefore:
            assert run == "two"


def test_the_usual_value_is_one_of_many_patients_and_not_of_many_rows(tmp_path: Path) -> None:
    """Fifteen patients with two zeros each do not hide one with 400 readings; nor do exchanged cells without names."""
    generator = np.random.default_rng(0)
    values, whose = generator.integers(50, 130, 900) * 1.0, [f"P{place // 9}" for place in range(900)]
    more = np.concatenate([np.zeros(30), generator.normal(85, 12, 400).round()])
    remember(tmp_path / "named", "one", numbers_of("rate", values, -1.0, 300.0), CELL, whose)
    other = numbers_of("other", np.arange(900.0), 0.0, 900.0)
    remember(tmp_path / "unnamed", "one", numbers_of("rate", values, 0.0, 300.0) | other, CELL)

    later, exchanged = np.concatenate([values, more]), values.copy()
    exchanged[:2] = values[[1, 0]]
    names = [*whose, *(f"Z{place // 2}" for place in range(30)), *["X"] * 400]
    with pytest.raises(ReleasedBefore):
        remember(tmp_path / "named", "two", numbers_of("rate", later, -1.0, 300.0), CELL, names)
    with pytest.raises(ReleasedBefore):
        remember(tmp_path / "unnamed", "two", numbers_of("rate", exchanged, 0.0, 300.0) | other, CELL)


def _visits_of(values: Sequence[float], patients: Sequence[int]) -> tuple[dict[str, Values], list[str]]:
    used = numbers_of("age", np.array(values), 0.0, 200.0) | rows_of(np.array(patients))
    return used, [f"P{one}" for one in patients]


@for_each("change", ("order", "owner", "digits", "patient"))
def test_what_changes_between_two_tables_is_told_from_what_seems_to(change: str, tmp_path: Path) -> None:
    """The order of visits is none; a moved visit, fewer digits beside a correction and one new patient are refused."""
    generator = np.random.default_rng(4)
    values, patients = generator.uniform(50.0, 140.0, 200).round(2), np.repeat(np.arange(100), 2)
    later, owners = values.copy(), patients.copy()
    if change == "order":
        later[:2] = values[[1, 0]]
    elif change == "owner":
        owners[1] = 7
    elif change == "digits":
        later = np.append(values[1:].round(1), 104.0)
        owners = np.append(patients[1:], 0)
    else:
        later = np.append(values, generator.uniform(50.0, 140.0, 31))
        owners = np.append(patients, [*range(30), 100])
    used, names = _visits_of(values.tolist(), patients.tolist())
    remember(tmp_path, "one", used, CELL, names)
    used, names = _visits_of(later.tolist(), owners.tolist())
    try:
        remember(tmp_path, "two", used, CELL, names)
        assert change == "order"
    except ReleasedBefore:
        assert change != "order"


def test_the_memory_has_no_value_and_a_refusal_names_concepts(tmp_path: Path) -> None:
    """Two sites with the same table have other digests, and a column has other digests than its equal."""
    names = ["age, mapped", "t40, product with sex=F:bmi, knots (18.5, 25.0),1, product", "row=first"]
    assert "Sums of age, t4, sex, bmi, number of rows were" in ReleasedBefore(names, CELL).what
    contents = []
    for site in ("a", "b"):
        remember(tmp_path / site, "one", columns({"age": [50.0] * 9, "bmi": [50.0] * 9}), CELL)
        with recording(tmp_path / site) as store:
            contents += store.read("SELECT digests FROM contents")
    assert len({bytes(found) for (found,) in contents}) == len(contents) == 12
    assert not any(np.array(50.0).tobytes() in bytes(found) for (found,) in contents)


def test_a_memory_that_the_log_has_seen_must_be_there(tmp_path: Path) -> None:
    """An older copy, no copy, another secret and a changed row are refused; a memory that is further is not."""
    require_head(tmp_path / "new", "")
    here = tmp_path / "models"
    assert answers(here, "one", table(30))
    first, copy = newest_head(here), (here / RECORDS).read_bytes()
    assert answers(here, "two", table(60, seed=9))
    newest = newest_head(here)

    require_head(here, first)
    require_head(here, newest)
    (here / RECORDS).write_bytes(copy)
    for suffix in ("-wal", "-shm"):
        (here / (RECORDS + suffix)).unlink(missing_ok=True)
    require_head(here, first)
    with pytest.raises(MemoryLost):
        require_head(here, newest)
    with recording(here) as store:
        store.write("UPDATE used SET run = 'another'")
    with pytest.raises(MemoryLost):
        require_head(here, first)
    with pytest.raises(MemoryLost):
        require_head(tmp_path / "deleted", newest)


def test_another_secret_is_another_memory(tmp_path: Path) -> None:
    """Without its secret the site could not recognise its values again."""
    assert answers(tmp_path, "one", table(30))
    (tmp_path / "site.secret").write_bytes(bytes(32))

    with pytest.raises(MemoryLost):
        require_head(tmp_path, "")
