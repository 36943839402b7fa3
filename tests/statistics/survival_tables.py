"""Public survival tables in `tables`, each dealt to sites: by institution if the table has it, by chance otherwise.
Sources: lung (Loprinzi et al. 1994), rossi (Rossi, Berk, Lenihan 1980), gbsg2 (Schumacher et al. 1994), larynx (Kardaun
1983) and leukemia (Freireich et al. 1963). lung has six groups of institutions. Many times are tied, and many values of
lung are missing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pandas as pd

_FOLDER: Final = Path(__file__).parent / "tables"
_YES: Final = (0, 1)


@dataclass(frozen=True, kw_only=True)
class SurvivalTable:
    """A table with the columns time, event and site, and the terms of a model. `coded` has the codes of columns."""

    name: str
    terms: tuple[str, ...]
    by: str
    coded: dict[str, tuple[object, ...]]
    rows: pd.DataFrame

    def __str__(self) -> str:
        """Return the name, which tests use for folders."""
        return self.name


def _read(name: str, numbers: str, by: str, **coded: tuple[object, ...]) -> SurvivalTable:
    rows = pd.read_csv(_FOLDER / f"{name}.csv")
    terms = (*numbers.split(), *coded)
    return SurvivalTable(name=name, terms=terms, by=by, coded={"event": _YES, **coded}, rows=rows)


TABLES: Final = (
    _read("lung", "age ecog loss", "sex", sex=(1, 2)),
    _read("rossi", "age prio", "fin", fin=_YES, race=_YES, wexp=_YES, mar=_YES, paro=_YES),
    _read(
        "gbsg2", "age tsize pnodes progrec estrec", "tgrade",
        hormone=("no", "yes"), menostat=("Pre", "Post"), tgrade=("I", "II", "III"),
    ),
    _read("larynx", "age", "four", two=_YES, three=_YES, four=_YES),
    _read("leukemia", "white", "arm", sex=_YES, arm=_YES),
)  # fmt: skip
LUNG, ROSSI, _, LARYNX, LEUKEMIA = TABLES
# Some patients die or are censored on the first day.
FROM_0: Final = replace(LUNG, name="from 0", rows=LUNG.rows.assign(time=(LUNG.rows["time"] - 90).clip(lower=0)))


def pooled(table: SurvivalTable) -> pd.DataFrame:
    """Return the one pooled table as numbers: a column of 0 and 1 for each code but the first."""
    found = table.rows.copy()
    for name, codes in table.coded.items():
        if name == "event":
            continue
        for code in codes[1:]:
            found[f"{name}={code}"] = (found[name] == code).astype(float).where(found[name].notna())
        found = found.drop(columns=name)
    return found
