"""Converts blocks of cells with plainly written numbers at once.

What is plain is decided here narrowly: all else goes the careful way, in cells.py, so nothing here has to know why a
cell is no number.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as arrow
import pyarrow.compute as compute

from site_agent.trainer.data.cell_rules import LARGEST_MAGNITUDE, LONGEST_NUMBER

Numbers: TypeAlias = npt.NDArray[np.float64]


def plain_numbers(cells: arrow.Array, words: arrow.StringArray, decimal: str) -> Numbers | None:
    """Return float64 of shape (cells,), NaN if missing, or None if any cell is not a plain number.

    Args:
        cells: texts without nulls, or numbers with nulls where the source has none.
        words: the texts that say that a value is missing.
        decimal: what stands between whole and fraction in a text.
    """
    if not arrow.types.is_string(cells.type):
        return _usable(_as_numpy(cells.cast(arrow.float64(), safe=False)), is_number=True, missing=cells.null_count)
    values = _converted(cells, words, decimal)
    # Blanks around a number are rare, and taking them off first would cost every column a fifth of its time.
    return _converted(compute.utf8_trim_whitespace(cells), words, decimal) if values is None else values


def plain_cells(texts: arrow.StringArray, words: arrow.StringArray, decimal: str) -> npt.NDArray[np.bool_]:
    """Return which texts are missing or certainly convertible numbers: shape (texts,)."""
    point = "[.]" if decimal == "." else decimal
    number = rf"^-?(\d{{1,30}}({point}\d{{0,30}})?|{point}\d{{1,30}})([eE]-?\d)?$"
    is_plain = compute.or_(compute.match_substring_regex(texts, number), compute.is_in(texts, value_set=words))
    return np.asarray(is_plain.to_numpy(zero_copy_only=False), dtype=bool)


def _converted(texts: arrow.StringArray, words: arrow.StringArray, decimal: str) -> Numbers | None:
    lengths = compute.binary_length(texts)
    if (compute.max(lengths).as_py() or 0) > LONGEST_NUMBER:
        return None
    # Most tables leave a cell empty where nothing is known; then the lengths say all.
    is_absent = compute.equal(lengths, 0) if len(words) == 1 else compute.is_in(texts, value_set=words)
    texts = compute.if_else(is_absent, None, texts)
    if decimal != ".":
        texts = compute.replace_substring(compute.replace_substring(texts, ".", " "), decimal, ".")
    try:
        return _usable(_as_numpy(texts.cast(arrow.float64())), is_number=False, missing=texts.null_count)
    except arrow.ArrowInvalid:
        return None


def _as_numpy(values: arrow.DoubleArray) -> Numbers:
    # To a copy, as what comes from there cannot be written to.
    return np.array(values.to_numpy(zero_copy_only=False), dtype=np.float64)


def _usable(values: Numbers, *, is_number: bool, missing: int) -> Numbers | None:
    """The values, unless one is too large to compute with; a text that says NaN is no number."""
    with np.errstate(invalid="ignore"):
        is_within = np.abs(values) <= LARGEST_MAGNITUDE
    outside = len(values) - np.count_nonzero(is_within)
    if is_number:
        return values if outside == np.count_nonzero(np.isnan(values)) else None
    return values if outside == missing else None
