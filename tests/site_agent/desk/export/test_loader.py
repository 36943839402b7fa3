"""Rows that the loader and predictions do not answer: a row without a column, a code that nobody declared."""

from __future__ import annotations

import json
from datetime import date

import numpy as np
import pyarrow as arrow

from site_agent.desk.export.described_model import description_of, rule_facts
from site_agent.desk.export.loader import RowReader, rule_of
from site_agent.trainer.data.cell_rules import MISSING, UNDECLARED, UNKNOWN_POSITION, CodeRule, DateRule, NumberRule
from site_agent.trainer.data.cells import Spelling, feature_parser, feature_rule
from site_agent.trainer.data.columns import CategoricalFeature
from tests.site_agent.desk.export.test_parity import model


def test_a_row_without_a_required_column_has_no_answer() -> None:
    """An empty cell of a column that may be missing has one."""
    reader = RowReader(json.loads(json.dumps(description_of(model(), "law-1"))))
    row = {"age": 50, "chol": "", "bmi": 50, "crp": 50, "sex": "1", "pain": "1", "ward": "x"}
    without = {name: cell for name, cell in row.items() if name != "chol"}

    assert [bool(reader.read(one)[1]) for one in (row, without)] == [False, True]


def test_an_undeclared_code_is_never_taken_for_unknown() -> None:
    """Neither by predictions nor by the loader, whether a missing one is refused or is a value of its own."""
    for missing, absent in (("refuse", MISSING), ("unknown", UNKNOWN_POSITION)):
        keys = {"name": "ward", "role": "feature", "type": "categorical", "codes": ["x", "y"], "missing": missing}
        feature = CategoricalFeature.model_validate_json(json.dumps(keys))

        rule = rule_of(json.loads(json.dumps(rule_facts(feature_rule(feature, Spelling(".", ()))))))

        assert isinstance(rule, CodeRule)
        assert [rule.read(cell) for cell in ("x", " y", "z", "X", "")] == [0.0, 1.0, UNDECLARED, UNDECLARED, absent]
        assert list(feature_parser(feature, Spelling(".", ()))(arrow.array(["x", "z"])).flaws) == [UNDECLARED.words]


def reader(rule: NumberRule | DateRule, decimal: str = ".") -> RowReader:
    """A reader of rows with one column."""
    interval = None
    if isinstance(rule, DateRule):
        interval = {"sign": 1, "divisor": 1.0, "unit": "days", "refuses_missing": False, "range": [None, None]}
        interval |= {"other": None, "day": 0.0}
    column = {"name": "a", "required": True, "limits": [None, None], "rule": rule_facts(rule), "interval": interval}
    return RowReader(json.loads(json.dumps({"decimal": decimal, "features": [column], "days": []})))


def read(one: RowReader, cell: object) -> float | str:
    """What the reader makes of a cell: a number, or why it makes none."""
    values, reasons = one.read({"a": cell})
    return reasons[0] if reasons else values[0]


def test_a_date_is_text_a_date_or_days_since_1970() -> None:
    """The same day in each spelling is the same input; a day that nobody can have is no input."""
    german = reader(DateRule({"", "?"}, ["%d.%m.%Y"], refuses_future=True))
    plain = reader(DateRule({"", "?"}, ["%Y-%m-%d"], refuses_future=True))

    same = [read(german, cell) for cell in ("02.01.1970", date(1970, 1, 2), 1)]
    same += [read(plain, cell) for cell in ("1970-01-02", "1970-01-02 23:59")]
    absent = [read(german, cell) for cell in (None, "?", float("nan"))]
    several = reader(DateRule({"", "?"}, ["%d.%m.%Y", "%Y-%m-%d"], refuses_future=True))
    same += [read(several, cell) for cell in ("02.01.1970", "1970-01-02", "1970-01-02 23:59")]
    refused = [read(german, cell) for cell in ("1970-01-02", "30.02.1970", "01.01.9999", float("inf"), True)]

    assert same == [1.0] * 8
    assert all(isinstance(cell, float) and np.isnan(cell) for cell in absent)
    assert all(isinstance(words, str) and words.startswith("column a: ") for words in refused)
    assert refused[0] == "column a: a text that is not a date of the declared pattern (1970-01-02)"


def test_a_number_is_read_as_the_table_writes_it() -> None:
    """With the table's decimal comma where it is text; and only what predictions take for a number."""
    one = reader(NumberRule({"", "0"}, (0.0, 9.0), refuses_missing=False), ",")

    found = [read(one, cell) for cell in ("1,5", 1.5, "1.5", "1_0", "nan", "٣", "9,1")]

    assert found[:2] == [1.5, 1.5]
    assert found[2] == "column a: text where a number is declared (1.5)"
    assert found[6] == "column a: a number outside the declared range 0 to 9 (9,1)"
    assert all(isinstance(words, str) for words in found[2:])
    assert all(np.isnan(float(read(one, cell))) for cell in ("0,0", 0, None, float("nan")))
