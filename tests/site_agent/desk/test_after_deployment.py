"""A model in use: abstentions, and tables in other formats."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from protos.errors import DataError
from site_agent.desk.prediction import predict_table
from site_agent.hospital import Hospital
from tests.site_agent.trainer.after_a_run import site_after_run


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    """A site after a run on real patients."""
    return site_after_run(tmp_path_factory.mktemp("site"), siloed_baseline=False)


def new_rows(hospital: Hospital, path: Path, changes: dict[tuple[int, str], str], without: str = "") -> Path:
    """The site's own rows with some cells changed, perhaps without a column."""
    with Path(hospital.data.table).open(newline="") as file:
        header, *rows = csv.reader(file)
    for (row, name), cell in changes.items():
        rows[row][header.index(name)] = cell
    kept = [place for place, name in enumerate(header) if name != without]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[line[place] for place in kept] for line in (header, *rows)])
    return path


def test_a_row_that_is_foreign_or_lacks_a_value_is_left_out(hospital: Hospital, tmp_path: Path) -> None:
    """It keeps its place with the reason, and the answers of the others are as without it."""
    plain = new_rows(hospital, tmp_path / "plain.csv", {})
    changed = new_rows(hospital, tmp_path / "new.csv", {(2, "mean_radius"): "", (4, "mean_area"): "99999"})

    predict_table(hospital, plain, tmp_path / "a.csv", None)
    predicted = predict_table(hospital, changed, tmp_path / "b.csv", None)

    before, after = (list(csv.reader((tmp_path / name).read_text().splitlines())) for name in ("a.csv", "b.csv"))
    assert predicted.rows == len(after) - 1 == len(before) - 1
    assert after[3][1:] == ["", "column mean_radius: a missing value (the contract refuses it)"]
    assert after[5][1:] == ["", "column mean_area: outside of the training rows (99999)"]
    assert predicted.abstained == sum(bool(line[2]) for line in after[1:])
    for place, (one, other) in enumerate(zip(before[1:], after[1:], strict=True), start=1):
        assert one[0] == other[0]
        if place not in (3, 5):
            assert one[2] == other[2]
            assert float(one[1] or -1) == pytest.approx(float(other[1] or -1), abs=1e-6)


def test_without_a_required_column_nothing_is_predicted(hospital: Hospital, tmp_path: Path) -> None:
    """The column is named, and no file is written."""
    changed = new_rows(hospital, tmp_path / "new.csv", {}, without="mean_texture")

    with pytest.raises(DataError, match="no column mean_texture, but the model requires"):
        predict_table(hospital, changed, tmp_path / "out.csv", None)

    assert not (tmp_path / "out.csv").exists()


def test_a_parquet_file_is_predicted_as_text_is(hospital: Hospital, tmp_path: Path) -> None:
    """Identifiers, order and every digit."""
    import pandas

    text = new_rows(hospital, tmp_path / "new.csv", {})
    pandas.read_csv(text).to_parquet(tmp_path / "new.parquet")

    predict_table(hospital, text, tmp_path / "a.csv", None)
    predict_table(hospital, tmp_path / "new.parquet", tmp_path / "b.csv", None)

    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
