"""What the loader and predictions do not answer: a row without a column, a code that nobody declared."""

from __future__ import annotations

import json
from datetime import date

import numpy as np
import pyarrow as arrow
import torch

from site_agent.desk.export import loader
from site_agent.desk.export.export_folder import description_of
from site_agent.desk.export.written import written_down
from site_agent.trainer.data.cells import UNDECLARED, UNKNOWN_POSITION, Spelling, feature_parser
from site_agent.trainer.data.contract_columns import CategoricalFeature
from tests.site_agent.desk.export.test_parity import model


def test_a_row_without_a_required_column_has_no_answer() -> None:
    """An empty cell of a column that may be missing has one."""
    saved = model()
    graph = written_down(saved, None)
    facts = json.loads(json.dumps(description_of(saved, graph, "law-1")))
    tensors = {name: torch.from_numpy(array.copy()) for name, array in graph.constants.items()}
    row = {"age": 50, "chol": "", "bmi": 50, "crp": 50, "sex": "1", "pain": "1", "ward": "x"}
    without = {name: cell for name, cell in row.items() if name != "chol"}

    answers = loader.Exported(facts, tensors).predict([row, without])

    assert answers[0] is not None
    assert answers[1] is None


def test_an_undeclared_code_is_refused_where_a_missing_one_is() -> None:
    """By predictions and by the loader alike; otherwise both take it as unknown."""
    for missing, place in (("refuse", None), ("unknown", UNKNOWN_POSITION)):
        keys = {"name": "ward", "role": "feature", "type": "categorical", "codes": ["x", "y"], "missing": missing}
        feature = CategoricalFeature.model_validate_json(json.dumps(keys))
        column = {"codes": ["x", "y"], "missing": [""], "refuses_missing": missing == "refuse"}

        parsed = feature_parser(feature, Spelling(".", ()), for_prediction=True)(arrow.array(["z"]))

        assert list(parsed.flaws) == ([UNDECLARED.words] if place is None else [])
        assert loader._number(column, "z") == place


def test_a_date_is_text_a_date_or_days_since_1970() -> None:
    """The same day in each spelling is the same input; a day that nobody can have is no input."""
    date_of = {"pattern": "%d.%m.%Y", "future": "refuse"}
    column = {"name": "born", "missing": ["", "?"], "date": date_of}
    plain = column | {"date": {"pattern": "%Y-%m-%d", "future": "refuse"}}

    same = [
        loader._day(column, "02.01.1970"),
        loader._day(column, date(1970, 1, 2)),
        loader._day(column, 1),
        loader._day(plain, "1970-01-02"),
        loader._day(plain, "1970-01-02 23:59"),
    ]
    absent = [loader._day(column, cell) for cell in (None, "?", float("nan"))]
    refused = [loader._day(column, cell) for cell in ("1970-01-02", "30.02.1970", "01.01.9999", float("inf"), True)]

    assert same == [1.0] * 5
    assert all(cell is not None and np.isnan(cell) for cell in absent)
    assert refused == [None] * 5


def test_a_number_is_read_as_the_table_writes_it() -> None:
    """With the table's decimal comma where it is text; and only what predictions take for a number."""
    column = {"codes": None, "missing": ["", "0"], "refuses_missing": False, "low": 0.0, "high": 9.0, "decimal": ","}

    assert [loader._number(column, cell) for cell in ("1,5", 1.5, "1.5", "1_0", "nan", "٣", "9,1")] == [
        *(1.5, 1.5),
        *(None,) * 5,
    ]
    assert np.isnan([loader._number(column, cell) for cell in ("0,0", 0, None, float("nan"))]).all()
