"""Reads public tables whose rows come from several hospitals, clinics or areas, as each hospital reads its own table.

The caller gives the folder. It has `heart/` and `covertype/`, and `tables/` with the three tables that other packages
contain (benchmarks/README.md tells how to write them). The repository has no copy of them. The rules:

* sites are places that the tables' authors defined. Nobody divided a table into pieces for this study;
* a column is a concept only if it has the same meaning in all tables that record it;
* columns that are unknown at the time of prediction are removed. Sites with too few patients for a test are removed
  too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import yaml

from benchmarks.experiments.data.covertype import AREAS, area_table
from benchmarks.experiments.data.recipes import Default, adapted
from benchmarks.experiments.data.sources import hospital_contract, public_table
from benchmarks.experiments.plans import experiment_plan
from benchmarks.prior.prior_gain import CONCEPTS, uci_tables
from global_layers.frames import tables_of
from protos.errors import ConfigurationError
from protos.plan.plan import Plan
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import Table

FEWEST_SITES: Final = 3  # that record a concept
_FEWEST_OF_A_CLASS: Final = 10  # so that three of them have test rows
_YEAR_DAYS: Final = 365
_HALF_YEAR_MONTHS: Final = 6
_STUDIES: Final = {"cleveland": "cleveland.data", "south-africa": "sa.data", "faisalabad": "faisalabad.csv"}
_NUMBERS: Final = ("elevation", "aspect", "slope", "hhdist", "vhdist", "hrdist", "hfpdist")
_PREGNANCY: Final = (
    "Group", "Age", "Black", "Hisp", "Education", "Public.Asstce", "Hypertension", "Diabetes", "BMI", "Use.Tob",
    "Prev.preg", "BL.GE", "BL..BOP", "BL.PD.avg", "BL.CAL.avg", "BL.Pl.I",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class NaturalSites:
    """The sites of one table.

    Attributes:
        tables: the table of each site, in a fixed order.
        concepts: the columns with the same meaning, as a plan lists them, with `recorded_by`.
        classes: of the outcome, if there are more than two.
    """

    tables: Mapping[str, Table]
    concepts: Sequence[Mapping[str, Any]]  # Any: keys of a plan, checked by it
    classes: tuple[str, ...] = ()

    def plan(self, names: Iterable[str], seed: int) -> Plan:
        """A plan with federated-prior of these sites, on the concepts that enough of them record."""
        members = list(names)
        concepts = []
        for concept in self.concepts:
            recorded_by = [name for name in members if name in concept["recorded_by"]]
            if len(recorded_by) >= FEWEST_SITES:
                concepts.append({**concept, "recorded_by": recorded_by})
        keys: dict[str, Any] = {"kind": "prior", "fewest_sites": FEWEST_SITES, "rows_per_unknown": 1.0}
        if self.classes:
            keys["outcome"] = {"task": "multi-class", "classes": list(self.classes)}
        return experiment_plan(members, seed, **keys, concepts=concepts)


@cache
def uci_heart(_: Path) -> NaturalSites:
    """Heart disease at angiography, four clinics; the quickstart's own files and contracts."""
    tables = uci_tables(CONCEPTS.parent)
    known = {name: {feature.concept for feature in table.contract.features} for name, table in tables.items()}
    concepts = [
        concept | {"recorded_by": [name for name in tables if concept["name"] in known[name]]}
        for concept in yaml.safe_load(CONCEPTS.read_text())["concepts"]
    ]
    return NaturalSites(tables=tables, concepts=concepts)


@cache
def heart_studies(folder: Path) -> NaturalSites:
    """Three heart studies with other columns, patients and outcomes. Only age means the same in all three.

    Faisalabad's length of follow-up is removed, because it ends with the outcome.
    """
    tables = {}
    for name, file in _STUDIES.items():
        contract = adapted(hospital_contract(name), Default(), without=("time",))
        tables[name] = public_table(folder / "heart" / file, _with_concepts(contract, ("age",)))
    age = {"kind": "number", "name": "age", "definition": "Age.", "unit": "years", "low": 0, "high": 120}
    return NaturalSites(tables=tables, concepts=[age | {"recorded_by": list(tables)}])


@cache
def covertype_areas(folder: Path) -> NaturalSites:
    """Forest types in four wilderness areas of Colorado: seven numbers in common, three to six classes in an area."""
    tables = {}
    for area in AREAS:
        table, _ = area_table(folder, area, Default(one_hot=False))
        tables[area] = replace(table, contract=_with_concepts(table.contract, _NUMBERS))
    concepts = []
    for name in _NUMBERS:
        values = np.concatenate([table.features[name] for table in tables.values()])
        unit = next(f.unit for f in tables["rawah"].contract.features if f.name == name)  # type: ignore[union-attr]
        concept = {"kind": "number", "name": name, "definition": f"The column {name}.", "unit": unit}
        concepts.append(concept | {"low": values.min(), "high": values.max(), "recorded_by": list(tables)})
    return NaturalSites(tables=tables, concepts=concepts, classes=tuple(str(number) for number in range(1, 8)))


@cache
def preterm_birth(folder: Path) -> NaturalSites:
    """Birth before 37 weeks, four clinics (Obstetrics and Periodontal Therapy trial), columns of the first visit."""
    frame = _frame(folder, "opt").apply(lambda column: column.str.strip() if column.dtype == "str" else column)
    outcome = frame["Preg.ended...37.wk"]
    frame = frame[outcome.isin(["Yes", "No"])]
    known = frame[list(_PREGNANCY)].replace("", np.nan)
    # An empty text is a separate code, because the trial recorded it as a code.
    texts = known.select_dtypes(exclude="number").columns
    known[texts] = known[texts].fillna("not stated")
    return _of_frame(known.assign(outcome=(outcome == "Yes").astype(int)), frame["Clinic"])


@cache
def leukaemia(folder: Path) -> NaturalSites:
    """Death within a year of acute myeloid leukaemia, districts of north-west England; few columns, few patients."""
    frame = _frame(folder, "LeukSurv")
    frame = frame[(frame["time"] > _YEAR_DAYS) | (frame["event"] == 1)]
    died = ((frame["time"] <= _YEAR_DAYS) & (frame["event"] == 1)).astype(int)
    known = pd.DataFrame({
        "age": frame["num_age"], "sex": frame["fac_sex"].map({0: "female", 1: "male"}),
        "white cells": np.log1p(frame["num_wbc"]), "deprivation": frame["num_tpi"], "outcome": died,
    })  # fmt: skip
    return _of_frame(known, "district " + frame["fac_district"].astype(str))


@cache
def dialysis(folder: Path) -> NaturalSites:
    """Death within half a year of the start of dialysis, centres in Brazil."""
    frame = _frame(folder, "Dialysis")
    frame = frame[(frame["time"] > _HALF_YEAR_MONTHS) | (frame["event"] == 1)]
    died = ((frame["time"] <= _HALF_YEAR_MONTHS) & (frame["event"] == 1)).astype(int)
    known = pd.DataFrame({
        "age": frame["num_age"], "begin": frame["num_begin"], "disease": frame["fac_disease"].astype(str),
        "outcome": died,
    })  # fmt: skip
    return _of_frame(known, "centre " + frame["fac_center"].astype(str))


SOURCES: Final[Mapping[str, Callable[[Path], NaturalSites]]] = {
    "UCI heart": uci_heart,
    "heart studies": heart_studies,
    "covertype areas": covertype_areas,
    "preterm birth": preterm_birth,
    "leukaemia": leukaemia,
    "dialysis": dialysis,
}


def _of_frame(frame: pd.DataFrame, places: pd.Series[Any]) -> NaturalSites:
    """The sites with enough rows of both classes. A code that is rare everywhere remains a code."""
    sites = {}
    for place in sorted(places.unique()):
        own = frame[places == place].reset_index(drop=True)
        if own["outcome"].value_counts().reindex([0, 1], fill_value=0).min() >= _FEWEST_OF_A_CLASS:
            sites[str(place).lower().replace(" ", "-")] = own
    tables, concepts = tables_of(sites, "outcome")
    return NaturalSites(tables=tables, concepts=concepts)


def _frame(folder: Path, name: str) -> pd.DataFrame:
    path = folder / "tables" / f"{name}.csv"
    if not path.is_file():
        raise ConfigurationError(
            what=f"The public table {path} is not there.",
            consequence="No experiment on it was run.",
            remedy="Write it as benchmarks/README.md says, or name other variants with --variant.",
        )
    return pd.read_csv(path)


def _with_concepts(contract: Contract, names: Sequence[str]) -> Contract:
    """The contract with these columns as concepts of the same names."""
    columns = tuple(
        column.model_copy(update={"concept": column.name}) if column.name in names else column
        for column in contract.columns
    )
    return Contract(format=contract.format, missing_markers=contract.missing_markers, columns=columns)
