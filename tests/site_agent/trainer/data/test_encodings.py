"""How features become columns: the fitted values, their use on other rows, and their storage as text."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from site_agent.hospital import Split
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.dataset import split_rows
from site_agent.trainer.data.preprocessing import Preprocessing, fit
from site_agent.trainer.data.tables import Table
from tests.for_each import for_each

from .conftest import contract_from

EVERY_ENCODING = """
format: {header: true}
columns:
  - {name: plain, role: feature, type: numeric}
  - {name: flagged, role: feature, type: numeric, missing: median-and-flag}
  - {name: filled, role: feature, type: numeric, missing: median}
  - {name: aged, role: feature, type: date, since: "2000-01-01", unit: years, missing: median-and-flag}
  - {name: ordered, role: feature, type: ordinal, codes: [1, 2, 3], missing: most-common-and-flag}
  - {name: either, role: feature, type: binary, codes: [0, 1], missing: most-common, encoding: one-hot}
  - {name: placed, role: feature, type: categorical, codes: [a, b, c, d], encoding: one-hot, fewest_rows: 3}
  - {name: y, role: target, task: regression}
"""
MEASURED = ("plain", "flagged", "filled", "aged")
CODED = {"ordered": 3, "either": 2, "placed": 4}
CONTRACT = contract_from(EVERY_ENCODING)


def _table(generator: np.random.Generator, rows: int, contract: Contract = CONTRACT) -> Table:
    features = {name: generator.lognormal(size=rows) for name in MEASURED}
    for name in MEASURED[1:]:
        features[name][generator.random(rows) < 0.2] = np.nan
    features |= {name: generator.integers(-1, codes, size=rows).astype(np.float64) for name, codes in CODED.items()}
    target = generator.normal(size=rows)
    return Table(contract=contract, rows=rows, features=MappingProxyType(features), target=target, patients=None)


@for_each("seed", range(30))
def test_no_bit_of_validation_or_test_rows_reaches_the_preprocessing(seed: int) -> None:
    """Other rows may hold anything, missing values and rare codes too: what is fitted is the same text."""
    generator = np.random.default_rng(seed)
    table, stranger = _table(generator, 80), _table(generator, 80)
    parts = split_rows(table, Split(seed=seed))
    others = np.concatenate([parts.validation, parts.test])
    mixed = {name: values.copy() for name, values in table.features.items()}
    for name, values in stranger.features.items():
        mixed[name][others] = values[others] * (1e6 if name in MEASURED else 1)
    assert table.target is not None
    target = table.target.copy()
    target[others] = -1e9
    changed = replace(table, features=MappingProxyType(mixed), target=target)
    fitted = fit(CONTRACT, table, parts.training)
    assert fit(CONTRACT, changed, parts.training).model_dump_json(indent=2) == fitted.model_dump_json(indent=2)
    for name in (*MEASURED, *CODED):  # and each column does reach it, so the law above can fail
        touched = {key: values.copy() for key, values in mixed.items()}
        if name in MEASURED:
            touched[name][parts.training[:20]] += 1
        else:
            touched[name][parts.training] = 0
        other = fit(CONTRACT, replace(table, features=MappingProxyType(touched)), parts.training)
        assert other.model_dump_json(indent=2) != fitted.model_dump_json(indent=2), name


@for_each("seed", range(10))
def test_a_saved_preprocessing_encodes_to_the_same_bits(seed: int) -> None:
    """Through text and back, of all rows at once, of some of them, and of one alone."""
    generator = np.random.default_rng(seed)
    table = _table(generator, 60)
    fitted, rows = fit(CONTRACT, table, np.arange(40)), generator.permutation(60)[:17]
    again, whole = Preprocessing.model_validate_json(fitted.model_dump_json(indent=2)), fitted.encode(table)
    assert whole.shape == (60, len(CONTRACT.encoded_columns))
    assert again.encode(table).tobytes() == whole.tobytes()
    assert again.encode(table, rows).tobytes() == whole[rows].tobytes()
    assert again.encode(table, rows[:1]).tobytes() == whole[rows[:1]].tobytes()
    assert np.isfinite(whole).all()


def _encoded(contract: str, values: list[float], others: list[float], name: str = "x") -> np.ndarray:
    """A single feature, fitted on some values and used on others."""
    parsed = contract_from(
        f"format: {{header: true}}\ncolumns:\n  - {contract}\n  - {{name: y, role: target, task: regression}}\n"
    )
    rows = np.array([*values, *others], dtype=np.float64)
    table = Table(
        contract=parsed,
        rows=len(rows),
        features=MappingProxyType({name: rows}),
        target=np.arange(len(rows), dtype=np.float64),
        patients=None,
    )
    return fit(parsed, table, np.arange(len(values))).encode(table)[len(values) :]


def test_the_most_common_code_stands_in_and_says_so() -> None:
    """Unknown becomes the training rows' most common code, with a column that tells it."""
    contract = (
        "{name: x, role: feature, type: categorical, codes: [a, b], encoding: one-hot, missing: most-common-and-flag}"
    )
    assert _encoded(contract, [1, 1, 0], [0, 1, -1]).tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
