"""Makes Table 1 of a clinical paper: the characteristics of the patients by outcome. The table stays at the site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.examination.examined_columns import absent_in
from site_agent.trainer.data.cells import Counts, Numbers
from site_agent.trainer.data.columns import CategoricalFeature, Feature, MeasuredFeature, TermsFeature
from site_agent.trainer.data.tables import Table

_MOST_CODES: Final = 20
_MOST_FEATURES: Final = 500

Line = tuple[str, ...]


def table_one(table: Table) -> tuple[Line, ...]:
    """Return the lines of Table 1, first the header. Each line describes all rows, and then the rows of each class.

    Numbers: mean (standard deviation), then median [quartiles]. Codes: rows (share of those with a value).
    """
    classes = table.contract.target.classes
    everyone = np.ones(table.rows, dtype=bool)
    columns = [everyone, *(table.target == place for place in range(len(classes)) if table.target is not None)]
    head = ("", "all rows", *(classes if table.target is not None else ()))
    counts = ("rows", *(str(int(column.sum())) for column in columns))
    lines = [head, counts]
    for feature in table.contract.features[:_MOST_FEATURES]:
        lines += _lines(feature, table.features[feature.name], columns)
    for column in table.contract.terms:
        lines += _terms_lines(column, table.terms[column.name], columns)
    return tuple(lines)


def _terms_lines(column: TermsFeature, counts: Counts, columns: list[npt.NDArray[np.bool_]]) -> Iterator[Line]:
    """Yield lines with the number of rows that have each declared code, and of rows that have no code or word."""
    has_code = counts > 0
    is_empty = has_code.sum(axis=1) == 0
    for place, code in enumerate((column.codes or ())[:_MOST_CODES]):
        yield (f"{column.name}: {code}", *(_share(has_code[rows, place]) for rows in columns))
    yield (f"{column.name}: empty", *(_share(is_empty[rows]) for rows in columns))


def _lines(feature: Feature, values: Numbers, columns: list[npt.NDArray[np.bool_]]) -> Iterator[Line]:
    absent = absent_in(feature, values)
    if isinstance(feature, MeasuredFeature):
        unit = f", {feature.unit}" if feature.unit else ""
        yield (f"{feature.name}{unit}: mean (SD)", *(_mean(values[rows & ~absent]) for rows in columns))
        yield (f"{feature.name}: median [quartiles]", *(_quartiles(values[rows & ~absent]) for rows in columns))
    elif isinstance(feature, CategoricalFeature):
        labels = feature.labels or feature.codes
        for place, label in enumerate(labels[:_MOST_CODES]):
            shares = [_share(values[rows & ~absent] == place) for rows in columns]
            yield (f"{feature.name}: {label}", *shares)
    if absent.any():
        yield (f"{feature.name}: missing", *(_share(absent[rows]) for rows in columns))


def _mean(values: Numbers) -> str:
    return f"{values.mean():.4g} ({values.std(ddof=1):.3g})" if len(values) > 1 else "–"


def _quartiles(values: Numbers) -> str:
    if not len(values):
        return "–"
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.4g} [{low:.4g}, {high:.4g}]"


def _share(is_so: npt.NDArray[np.bool_]) -> str:
    return f"{int(is_so.sum())} ({is_so.mean():.1%})" if len(is_so) else "–"
