"""Some of the damages of damage.py, and rows that a named person puts aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos.errors import DataError
from protos.plan.documents import parse_document
from site_agent.desk.examination.examine import examine
from site_agent.hospital import Split
from site_agent.trainer.data.cells import feature_rule
from site_agent.trainer.data.columns import NumericFeature
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.run_table import check_digest
from site_agent.trainer.data.tables import read_table, survey_table
from tests.files.damage import CONTRACT, DAMAGES, good_rows, told, tried, write


def test_no_damage_is_silent() -> None:
    """Every seventh damage, so that each kind of file is there."""
    counts = tried(range(1), DAMAGES[::7])
    assert counts["silent"] == 0
    assert min(counts["read_right"], counts["named"]) > 5


def _declared(*keys: str, text: str = CONTRACT.format(format="{header: true}")) -> Contract:
    for key in keys:
        old, new = key.split(" -> ")
        text = text.replace(old, new)
    return parse_document(text.encode(), Contract, source="contract.yaml", consequence="Nothing was sent.")


def test_rows_that_cannot_be_read_are_put_aside_up_to_the_declared_share(tmp_path: Path) -> None:
    """They are listed, the others are the same table, and the digest that a person accepts names them."""
    rows, path = good_rows(1), tmp_path / "table.csv"
    write(path, [row for place, row in enumerate(rows) if place not in (7, 9)])
    without = read_table(path, _declared())
    rows[7][3], rows[9] = "positive", rows[9][:4]
    write(path, rows)
    contract = _declared("columns: -> put_aside: 0.01\ncolumns:")
    found = survey_table(path, contract)
    assert found.table.put_aside == (9, 11)
    assert [one.rows for one in found.put_aside] == [(11,), (9,)]
    assert not found.mistakes
    assert found.table.patients == without.patients
    assert all((found.table.features[name] == without.features[name]).all() for name in without.features)
    assert {"put-aside"} < told(found)
    assert not examine(found, Split(seed=0)).errors
    rows[8][3] = "positive"
    write(path, rows)
    with pytest.raises(DataError):
        read_table(path, contract)
    rows[7][3], rows[8][3] = rows[6][3], "positive"
    write(path, rows)
    assert check_digest(read_table(path, contract), Split(seed=0)) != examine(found, Split(seed=0)).digest


@pytest.mark.parametrize(
    ("rule", "low", "high"), [("at-limit", 5.0, 90.0), ("half", 2.5, 90.0), ("missing", None, None)]
)
def test_a_detection_limit_is_read_as_declared(rule: str, low: float, high: float) -> None:
    """Below the limit and above it, however the sign is written."""
    column = NumericFeature(name="a", role="feature", type="numeric", missing="median", detection_limit=rule)  # type: ignore[arg-type]
    read = feature_rule(column, _declared()).read
    for cell in ("<5", "< 5", "≤5", "<=5.0"):
        assert read(cell) == low if low else read(cell) != read(cell)
    for cell in (">90", "≥ 90", "90+"):
        assert read(cell) == high if high else read(cell) != read(cell)
