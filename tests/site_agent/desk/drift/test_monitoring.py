"""Monitoring of a model in use: drift is reported by column, and figures are compared with the test's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from site_agent.desk.drift.column_drift import stability_index
from site_agent.desk.drift.monitor_command import monitor_lines
from site_agent.desk.drift.monitoring import monitor_table
from site_agent.hospital import Hospital
from tests.mask_images import put_table
from tests.site_agent.desk.test_after_deployment import later, new_rows
from tests.site_agent.trainer.after_a_run import site_after_run, site_with_masks


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    """A site after a run on real patients."""
    return site_after_run(tmp_path_factory.mktemp("site"), siloed_baseline=False)


def test_the_stability_index_by_hand() -> None:
    """From halves to three quarters and a quarter: 0.25·ln 1.5 + (-0.25)·ln 0.5."""
    found = stability_index(np.array([0.5, 0.5]), np.array([0.75, 0.25]))

    assert found == pytest.approx(0.25 * np.log(1.5) - 0.25 * np.log(0.5))
    assert stability_index(np.array([0.5, 0.5]), np.array([0.5, 0.5])) == 0.0


@pytest.mark.parametrize("has_patients", [True, False])
def test_rows_that_trained_the_model_do_not_measure_it(hospital: Hospital, tmp_path: Path, has_patients: bool) -> None:
    """The hospital's own table has no quality, and its rows are left out beside those of later patients."""
    without = "" if has_patients else "who"
    own = new_rows(hospital, tmp_path / "own.csv", {}, without=without)
    others = {place: name for place, name in later(hospital).items() if place[0] % 2}
    mixed = new_rows(hospital, tmp_path / "mixed.csv", others)

    all_known, some_known = monitor_table(hospital, own, None), monitor_table(hospital, mixed, None)

    assert all_known["quality"] is None
    assert all_known["known_rows"] == all_known["rows"]
    assert any("All rows with a prediction are in the hospital's own table." in x for x in monitor_lines(all_known))
    count, rows = some_known["known_rows"], some_known["rows"]
    assert count == rows - len(others)  # type: ignore[operator]
    told = f"{count} of the {rows} rows are in the hospital's own table"
    assert any(told in str(text) for text in some_known["warnings"])  # type: ignore[union-attr]
    assert 0 < some_known["quality"]["rows"] <= len(others)  # type: ignore[index,call-overload]


def test_a_table_that_cannot_be_read_now_is_a_warning(hospital: Hospital, tmp_path: Path) -> None:
    """The quality is measured on all rows, because nobody can tell which of them are known."""
    new = new_rows(hospital, tmp_path / "a.csv", {})
    moved = hospital.model_copy(update={"data": hospital.data.model_copy(update={"table": str(tmp_path / "gone.csv")})})

    found = monitor_table(moved, new, None)

    assert found["quality"] is not None
    assert any("own table could not be read now" in str(text) for text in found["warnings"])  # type: ignore[union-attr]


def test_without_outcomes_inputs_are_watched_alone(hospital: Hospital, tmp_path: Path) -> None:
    """A table without the target has no quality, and the terminal reports it."""
    new = new_rows(hospital, tmp_path / "a.csv", {}, without="outcome")

    found = monitor_table(hospital, new, None)

    assert found["quality"] is None
    assert any("outcome is not known" in line for line in monitor_lines(found))


def test_without_a_required_column_the_others_are_compared(hospital: Hospital, tmp_path: Path) -> None:
    """The missing column is named, and no row has a prediction."""
    changed = new_rows(hospital, tmp_path / "new.csv", {}, without="mean_texture")

    facts = monitor_table(hospital, changed, None)
    (named,) = [line for line in facts["warnings"] if "no column" in str(line)]
    assert named == "The table has no column mean_texture, but the model requires this column."
    assert (
        "The model predicted no row of this table. Therefore the quality of the model on these rows was not computed."
    ) in monitor_lines(facts)


def test_monitoring_compares_the_dice_of_new_masks_with_that_of_the_test(tmp_path: Path) -> None:
    """With the drawn masks it is about that of the test, with those of others worse, and without masks none."""
    hospital = site_with_masks(tmp_path / "site")
    new_rows = tmp_path / "new.csv"
    put_table(new_rows, tmp_path, list(range(1000, 1040)))
    text = new_rows.read_text().splitlines()
    cells = [line.split(",") for line in text[1:]]
    turned = [",".join([*one[:2], other[2]]) for one, other in zip(cells, cells[1:] + cells[:1], strict=True)]

    right: dict[str, Any] = monitor_table(hospital, new_rows, None)
    new_rows.write_text("\n".join([text[0], *turned]) + "\n")
    wrong: dict[str, Any] = monitor_table(hospital, new_rows, None)
    new_rows.write_text("\n".join(line.rpartition(",")[0] for line in text) + "\n")
    unknown: dict[str, Any] = monitor_table(hospital, new_rows, None)

    assert right["quality"]["metrics"]["dice"] > 0.8
    assert right["quality"]["is_worse"] == {"dice": False}
    assert wrong["quality"]["is_worse"] == {"dice": True}
    assert any("worse on the new rows than on the test rows. dice is" in warning for warning in wrong["warnings"])
    assert wrong["quality"]["means"] == {}
    assert unknown["quality"] is None
    assert any(line.startswith("dice ") for line in monitor_lines(wrong))
