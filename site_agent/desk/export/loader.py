"""Predicts with an exported model. The loader needs onnxruntime and no other package, and runs no code of the model.

    from loader import load
    model = load("folder-of-the-export")
    model.predict([{"age": 63, "sex": "1"}, {"age": 41, "sex": ""}])

A row has the table's values, by the columns' names. A date is text in the format that model.json shows (`pattern`), a
datetime.date, or a number: days since 1970-01-01. An image is a list of its intensities as the file has them: channel
by channel, and in each channel row by row. Nested lists are allowed. Its size, already turned and stretched, is in
model.json under `image`.

`predict` returns an entry for each row: the probability of the positive class, a list with one for each class, or a
number in the target's unit. The entry is None if a column or a value
is missing, the contract does not allow a value, or a number is beyond the limits of the training rows. `why(rows)`
returns the reasons. model.onnx alone predicts for every row. Research software: not a medical device.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

# An export replaces this import by the text of the imported file.
from site_agent.trainer.data.cell_rules import (
    ABSENT,
    MISSING,
    NOT_A_DATE,
    UNKNOWN_POSITION,
    CodeRule,
    DateRule,
    Flaw,
    IntervalRule,
    NumberRule,
    TermsRule,
)

LONGEST_SHOWN: Final = 40
MOST_REASONS: Final = 5
FIRST_DAY: Final = date(1970, 1, 1).toordinal()
FOREIGN: Final = Flaw("outside of the training rows")
EMPTY: Final = Flaw("it and all other columns that the model reads have no value")  # such as a note below a table
NOT_INTENSITIES: Final = Flaw("not the declared number of intensities, or one outside of what the file format allows")


def rule_of(facts: Mapping[str, Any]) -> NumberRule | CodeRule | DateRule:
    """Build the rule for the cells of a column from the column's entry in model.json."""
    kind, markers = facts["kind"], facts["missing"]
    if kind == "number":
        refuses, limit = facts["refuses_missing"], facts.get("detection_limit")
        return NumberRule(markers, tuple(facts["range"]), refuses_missing=refuses, detection_limit=limit)
    if kind == "code":
        codes = {code: float(place) for place, code in enumerate(facts["codes"])}
        return CodeRule(codes, markers, missing=MISSING if facts["refuses_missing"] else UNKNOWN_POSITION)
    pattern = facts["pattern"]  # a text, or a list of several
    patterns = [pattern] if isinstance(pattern, str) else pattern
    return DateRule(markers, patterns, refuses_future=facts["refuses_future"], zone=facts.get("zone"))


def terms_rule_of(facts: Mapping[str, Any]) -> TermsRule:
    """Build the rule for a column of terms from the column's entry in model.json."""
    return TermsRule(
        facts["missing"],
        refuses_missing=facts["refuses_missing"],
        separator=facts["separator"],
        codes=facts["codes"],
        buckets=facts["buckets"],
    )


def reason(column: str, flaw: Flaw, cell: object) -> str:
    """Explain why a row has no prediction: the column, the problem, and the value if the cell has a value."""
    has_value = flaw not in (MISSING, ABSENT) and cell != ""
    return f"column {column}: {flaw.words}{f' ({shown(cell)})' if has_value else ''}"


def joined(reasons: Sequence[str]) -> str:
    """Return the first reasons of a row as one text. Without a reason the text is empty."""
    others = len(reasons) - MOST_REASONS
    return "; ".join([*reasons[:MOST_REASONS], *([f"and {others} more"] if others > 0 else [])])


def shown(cell: object) -> str:
    """Return a value for a screen or a spreadsheet: short, on one line, without control characters."""
    text = f"{cell:g}" if isinstance(cell, float) else str(cell).strip()
    plain = "".join(one if one.isprintable() and one not in ";|" else "\N{REPLACEMENT CHARACTER}" for one in text)
    return plain if len(plain) <= LONGEST_SHOWN else plain[: LONGEST_SHOWN - 1] + "\N{HORIZONTAL ELLIPSIS}"


def load(folder: str | Path) -> Exported:
    """Load the model from a folder with model.json and model.onnx."""
    facts = json.loads((Path(folder) / "model.json").read_text(encoding="utf-8"))
    return Exported(facts, (Path(folder) / "model.onnx").read_bytes())


class Exported:
    """An exported model that predicts with onnxruntime."""

    def __init__(self, facts: Mapping[str, Any], content: bytes) -> None:
        import onnxruntime

        self.facts, self._rows = facts, RowReader(facts)
        self._session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return a prediction for each row, in order; None for a row that the contract does not allow."""
        import numpy

        read = [self._rows.read(row) for row in rows]
        found: list[Any] = [None] * len(rows)
        usable = [place for place, (_, reasons) in enumerate(read) if not reasons]
        if usable:
            values = numpy.array([read[place][0] for place in usable], dtype=numpy.float64)
            scores = self._session.run(["scores"], {"values": values})[0].tolist()
            for place, answer in zip(usable, scores, strict=True):
                found[place] = answer[0] if len(answer) == 1 else answer
        return found

    def why(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return for each row why it has no prediction, or an empty text if the row has a prediction."""
        return [joined(self._rows.read(row)[1]) for row in rows]


class RowReader:
    """Reads rows for an exported model. A row is a dictionary by the columns' names."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        """Build the rules from `facts`, the content of model.json."""
        self._columns = [(column, rule_of(column["rule"])) for column in (*facts["features"], *facts["days"])]
        self._terms = [(column, terms_rule_of(column["rule"])) for column in facts.get("terms", ())]
        self._features = len(facts["features"])
        self._decimal: str = facts["decimal"]
        self._image: Mapping[str, Any] | None = facts.get("image")

    def read(self, row: Mapping[str, Any]) -> tuple[list[float], list[str]]:
        """Return a row's inputs for the model, and the reasons why the row has no prediction, which may be none.

        The inputs are in the order of model.json's features, days and terms. A missing number or date is NaN. A code
        is its position. A date is the days since 1970-01-01. Terms are what `TermsRule` counts.
        """
        if self._image is not None:
            numbers = _intensities(self._image, row)
            if isinstance(numbers, Flaw):
                return [], [f"column {self._image['name']}: {numbers.words}"]
            return numbers, []
        cells = {column["name"]: self._cell(column, rule, row) for column, rule in self._columns}
        reasons, is_empty = [], not self._terms
        for place, (column, rule) in enumerate(self._columns):
            name = column["name"]
            found = cells[name]
            flaw, value = (found, math.nan) if isinstance(found, Flaw) else self._judged(column, cells)
            if flaw is not None:
                reasons.append(reason(name, flaw, value if flaw is FOREIGN else row.get(name)))
            is_code = isinstance(rule, CodeRule)
            is_empty &= place >= self._features or math.isnan(value) or (is_code and value == UNKNOWN_POSITION)
        if is_empty and not reasons and self._features > 1:
            reasons.append(reason(self._columns[0][0]["name"], EMPTY, ""))
        numbers = [math.nan if isinstance(found, Flaw) else found for found in cells.values()]
        for column, terms in self._terms:
            counts = _terms(column, terms, row)
            if isinstance(counts, Flaw):
                reasons.append(reason(column["name"], counts, ""))  # a note may name a patient
            else:
                numbers += [float(counts[place]) for place in range(terms.width)]
        return numbers, reasons

    def _cell(
        self, column: Mapping[str, Any], rule: NumberRule | CodeRule | DateRule, row: Mapping[str, Any]
    ) -> float | Flaw:
        if column["name"] not in row and column["required"]:
            return ABSENT
        cell = row.get(column["name"])
        is_number = isinstance(cell, int | float) and not isinstance(cell, bool)
        if cell is None or (is_number and math.isnan(cell)):
            cell = ""
        if isinstance(rule, DateRule):
            found = _day(rule, cell)
            return found if isinstance(found, Flaw) else found - FIRST_DAY
        # Only text has the table's decimal comma. A number in Python has a point.
        return rule.read(str(cell), self._decimal if isinstance(cell, str) else ".")

    def _judged(self, column: Mapping[str, Any], cells: Mapping[str, float | Flaw]) -> tuple[Flaw | None, float]:
        """Return the problem with a column's value, if any, and the value. A date becomes an interval first."""
        value, interval = cells[column["name"]], column.get("interval")
        assert isinstance(value, float)
        if interval is not None:
            rule = IntervalRule(
                tuple(interval["range"]),
                sign=interval["sign"],
                divisor=interval["divisor"],
                unit=interval["unit"],
                refuses_missing=interval["refuses_missing"],
            )
            other = interval["day"] if interval["other"] is None else cells[interval["other"]]
            if isinstance(other, Flaw):
                return None, math.nan  # the other column reports its own problem
            value = rule.length(value, other)
            if rule.is_outside(value):
                return rule.outside, value
            if rule.refuses_missing and math.isnan(value):
                return MISSING, value
        low, high = column.get("limits", (None, None))
        is_foreign = (low is not None and value < low) or (high is not None and value > high)
        return (FOREIGN if is_foreign else None), value


def _terms(column: Mapping[str, Any], rule: TermsRule, row: Mapping[str, Any]) -> Counter[int] | Flaw:
    if column["name"] not in row and column["required"]:
        return ABSENT
    cell = row.get(column["name"])
    return rule.read("" if cell is None or cell != cell else str(cell))  # NaN differs from itself


def _intensities(image: Mapping[str, Any], row: Mapping[str, Any]) -> list[float] | Flaw:
    """Return an image's numbers, channel by channel, from nested lists."""
    if row.get(image["name"]) is None:
        return ABSENT
    numbers = image["channels"] * image["height"] * image["width"]
    found, parts = list[float](), [row[image["name"]]]
    while parts and len(found) <= numbers:
        part = parts.pop()
        if isinstance(part, list | tuple):
            parts.extend(reversed(part))
        elif isinstance(part, bool) or not isinstance(part, int | float):
            return NOT_INTENSITIES
        elif image["lowest"] <= part <= image["highest"]:
            found.append(float(part))
        else:
            return NOT_INTENSITIES
    return found if len(found) == numbers and not parts else NOT_INTENSITIES


def _day(rule: DateRule, cell: Any) -> float | Flaw:
    """Convert a text, a date, or a number of days since 1970-01-01 to days since the year 1."""
    today = date.today()
    if isinstance(cell, date):
        return rule.judged(float(cell.toordinal()), today)
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return NOT_A_DATE if math.isinf(cell) else rule.judged(float(cell) + FIRST_DAY, today)
    return rule.read(str(cell), today)
