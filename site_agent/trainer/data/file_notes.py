"""What a file says about a column beside its cells. It becomes lines and comments of a drafted contract."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

_SPECIAL: Final = re.compile(r"\.[A-Z_a-z]")  # the special missing values of SAS and Stata
_UNIT: Final = re.compile(r".*[(\[]([^()\[\]]{1,15})[)\]]\s*")


@dataclass(frozen=True, kw_only=True)
class FileNote:
    """What a file, or the dictionary beside it, says about one column.

    Attributes:
        label: the column's long name.
        labels: the meaning of each code, by the code as it is in the cells.
        missing: cells that mean a missing value, such as 999.
        missing_ranges: the lowest and highest number of each range of missing values.
        unit: the unit of the column's format, where the label does not say it.
        limits: the lowest and the highest value that may be entered.
        told: remarks for the person who corrects the draft.
        ignored: why the column cannot be a feature; empty if it can.
    """

    label: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    missing: frozenset[str] = frozenset()
    missing_ranges: tuple[tuple[float, float], ...] = ()
    unit: str = ""
    limits: tuple[float, float] | None = None
    told: tuple[str, ...] = ()
    ignored: str = ""

    def means_missing(self, cell: str) -> bool:
        """Return whether the file says that this cell is a missing value."""
        if cell in self.missing or _SPECIAL.fullmatch(cell):
            return True
        try:
            return any(low <= float(cell) <= high for low, high in self.missing_ranges)
        except ValueError:
            return False

    @property
    def written_unit(self) -> str:
        """The unit of the format, or in brackets at the end of the label."""
        found = _UNIT.fullmatch(self.label)
        return self.unit or (found[1].strip() if found else "")
