"""Made-up hospitals and approved plans of the three kinds, drawn at random for the search in law.py. A history has two
or three plans. A later one mostly differs from the one before in one setting. Between two plans tables grow, also by
visits, and are corrected. They are not divided (docs/threat-model.md, "Not defended")."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from host.record_store import Store
from protos.plan.concepts import NumberConcept
from protos.plan.plan import Plan, plan_from_json
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.concept_columns import mapped_number, recorded_concepts
from tests.federation import hospital, identity_of
from tests.protos.examples import FEDERATED_AVERAGING, GLOBAL_LAYERS, NETWORK

SITES: Final = "abcdef"
CELL, SMALLEST = 5, 4
UNIT, OTHER_UNIT = "mg/dl", "umol/l"
NUMBERS: Final = ("creatinine", "urea")
STAGES: Final = ("early", "late", "rare")
CODES: Final = tuple(product(range(-1, len(STAGES)), (0, 1)))  # a stage, -1 if missing, and the outcome
_PATIENTS: Final = (28, 38)  # of a hospital
_VISITS: Final = 8  # so many numbers of rows are one patient's
Values = tuple[float, ...]  # creatinine and urea, NaN if missing; the place of the stage, -1 if missing; the outcome


@dataclass(frozen=True)
class Kind:
    """A row: its patient, values, the place of its codes, and whether each number is in its range, None if missing."""

    patient: str
    values: Values
    codes: int
    inside: tuple[bool | None, bool | None]


@dataclass
class House:
    """One hospital: its unit of creatinine, its folder, its rows, what decides its weight, and its log's newest head.
    Patients have up to so many `visits` at first, and mostly further ones later. With 1 each row is of its own
    patient."""

    name: str
    unit: str
    folder: Path
    rows: dict[int, Values]
    visits: int
    head: str = ""
    counted: int = field(init=False)
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.store, self.counted = Store(self.folder / "gate.sqlite"), len(self.rows)
        self.hospital = hospital(self.name, self.folder, smallest_sites=SMALLEST, smallest_cell=CELL)

    @cached_property
    def contract(self) -> Contract:
        """The columns, with the concept of each and this hospital's unit."""
        columns: list[dict[str, object]] = [
            {"name": name, "role": "feature", "type": "numeric", "missing": "median", "concept": name}
            | ({"unit": self.unit} if name == NUMBERS[0] else {})
            for name in NUMBERS
        ]
        columns.append({"name": "stage", "role": "feature", "type": "categorical", "codes": STAGES, "concept": "stage"})
        columns.append({"name": "ill", "role": "target", "task": "binary", "positive": ["1"], "concept": "ill"})
        return Contract.model_validate_json(json.dumps({"format": {"header": True}, "columns": columns}))

    @property
    def patients(self) -> list[str]:
        """The patient of each row."""
        return [f"{self.name}{number // _VISITS}" for number in self.rows]

    @property
    def table(self) -> Table:
        """The rows as the trainer reads them."""
        return replace(self.table_of([*self.rows.values()]), patients=tuple(self.patients) if self.visits > 1 else None)

    def new_row(self, generator: np.random.Generator, numbers: Iterator[int]) -> int:
        """Return the number of a row of a new patient, or of a further visit of a patient."""
        if self.visits == 1 or generator.random() < 0.5:
            return _VISITS * next(numbers)
        return int(generator.choice([row + 1 for row in self.rows if row + 1 not in self.rows and (row + 1) % _VISITS]))

    def table_of(self, rows: Sequence[Values]) -> Table:
        """A table with these rows."""
        values = np.array(rows, np.float64)
        features = {name: values[:, place] for place, name in enumerate((*NUMBERS, "stage"))}
        return Table(contract=self.contract, rows=len(rows), features=features, target=values[:, -1], patients=None)

    def kinds(self, plan: Plan) -> list[Kind]:
        """Return the rows as a plan's sums treat them."""
        concepts, found = {one.name: one for one in getattr(plan, "concepts", ())}, []
        recorded = recorded_concepts(self.contract.columns)
        for values, patient in zip(self.rows.values(), self.patients, strict=True):
            inside = []
            for name, value in zip(NUMBERS, values, strict=False):
                is_inside, concept = True, concepts.get(name)
                if isinstance(concept, NumberConcept):
                    number = mapped_number(concept, recorded[name])
                    is_inside = bool(number.low <= number.converted(np.array([value]))[0] <= number.high)
                inside.append(None if np.isnan(value) else is_inside)
            found.append(Kind(patient, values, CODES.index((int(values[2]), int(values[3]))), (inside[0], inside[1])))
        return found


def houses_of(generator: np.random.Generator, folder: Path, numbers: Iterator[int]) -> dict[str, House]:
    """All hospitals with their first rows."""
    found, is_apart = {}, generator.random() < 0.15
    for name in SITES:
        unit = OTHER_UNIT if generator.random() < 0.3 else UNIT
        visits = int(generator.choice([1, 2, 6], p=[0.3, 0.1, 0.6] if is_apart and not found else [0.7, 0.15, 0.15]))
        people = [_VISITS * next(numbers) for _ in range(generator.integers(*_PATIENTS))]
        each = [visits if place < 2 else int(generator.integers(visits)) + 1 for place in range(len(people))]
        rows = {one + place: row_of(generator) for one, own in zip(people, each, strict=True) for place in range(own)}
        for place, row in enumerate(rows if is_apart else ()):  # two patients alone have both numbers
            inside = float(generator.integers(1, 60))
            numbers_here = (30.0, 30.0) if not found and row < people[2] else (inside, np.nan)[:: (1, -1)[place % 2]]
            rows[row] = (*numbers_here, *rows[row][2:])
        found[name] = House(name, unit, folder / name, rows, visits)
    return found


def row_of(generator: np.random.Generator) -> Values:
    """One row: whole numbers, so that sums are exact; few beyond a limit."""
    creatinine = float(generator.integers(1, 200)) if generator.random() < 0.95 else np.nan
    urea = float(generator.integers(1, 100)) if generator.random() < 0.8 else np.nan
    stage = float(generator.choice(4, p=[0.03, 0.6, 0.33, 0.04]) - 1)
    return creatinine, urea, stage, float(generator.integers(0, 2))


def change(generator: np.random.Generator, house: House, numbers: Iterator[int]) -> None:
    """What happens in a hospital between two plans: visits, corrections, exchanged cells, or a lost folder."""
    names = list(house.rows)
    match 7 if house.visits > 1 and generator.random() < 0.3 else generator.integers(0, 9):
        case 0 | 1:
            for _ in range(int(generator.choice([1, 2, 7, 12]))):
                house.rows[house.new_row(generator, numbers)] = row_of(generator)
        case 2:
            for name in generator.choice(names, int(generator.choice([1, 3, 8])), replace=False):
                house.rows[int(name)] = row_of(generator)
        case 3:
            one, other = (int(name) for name in generator.choice(names, 2, replace=False))
            first, second = house.rows[one], house.rows[other]
            house.rows[one], house.rows[other] = (second[0], *first[1:]), (first[0], *second[1:])
        case 4:  # a pair of columns that only one new patient has
            for place in range(23):
                creatinine, urea = (float(generator.integers(1, 50)) for _ in range(2))
                values = creatinine if place % 2 == 0 or place == 1 else np.nan, urea if place % 2 else np.nan
                house.rows[_VISITS * next(numbers)] = (*values, 0.0, float(place // 2 % 2))
        case 5:  # one new value within the range
            for place in range(12):
                house.rows[_VISITS * next(numbers)] = 900.0 + place if place else 30.0, np.nan, 0.0, float(place % 2)
        case 6:
            for path in (house.folder / "models").glob("*"):
                path.unlink()
            house.rows[house.new_row(generator, numbers)] = row_of(generator)
        case 7 if house.visits > 1:  # many visits of one patient, whose codes stay
            seen = int(generator.choice(names))
            first, codes = seen - seen % _VISITS, house.rows[seen][2:]
            free = [row for row in range(first, first + _VISITS) if row not in house.rows]
            house.rows |= {row: (*map(float, generator.integers(1, 60, 2)), *codes) for row in free}
        case 8 if house.visits > 1:  # a visit becomes another patient's
            house.rows[house.new_row(generator, numbers)] = house.rows.pop(int(generator.choice(names)))


def plan_of(generator: np.random.Generator, place: int, before: Plan | None) -> Plan:
    """A plan drawn at random, or the one before, with one other setting. It may be of another kind."""
    if before is None or generator.random() < 0.1:
        names = generator.choice(list(SITES), generator.integers(4, 7), replace=False)
        names = sorted(names) if before is None else [site.name for site in before.sites]
        listed = [{"name": str(name), "identity": identity_of(str(name))} for name in names]
        head = {"study": f"study-{place}", "version": 1, "sites": listed, "masking": {"required": True}}
        content = head | (_prior, _statistics, _network)[generator.integers(0, 3)](generator)
    else:
        content = json.loads(before.canonical) | {"version": before.version + 1}
    found = json.loads(json.dumps(content))
    if generator.random() < 0.7:
        (_vary, _vary_kind)[generator.integers(0, 2)](generator, found, place)
    try:
        return plan_from_json(json.dumps(found))
    except ValueError:  # no plan, so nobody can announce it
        return plan_of(generator, place, before)


def _concepts() -> list[dict[str, Any]]:
    limits = {"kind": "number", "low": 0.0, "high": 100.0}
    units = {"unit": UNIT, "conversions": [{"unit": OTHER_UNIT, "factor": 0.5}]}
    found = [limits | {"name": name, "definition": name} for name in NUMBERS]
    return [found[0] | units, found[1], {"kind": "codes", "name": "stage", "definition": "stage", "codes": STAGES}]


def _prior(generator: np.random.Generator) -> dict[str, Any]:
    chosen = sorted(generator.choice(3, generator.integers(1, 4), replace=False).tolist())
    return {"kind": "prior", "concepts": [_concepts()[one] for one in chosen], "fewest_sites": SMALLEST}


def _statistics(generator: np.random.Generator) -> dict[str, Any]:
    ill = {"kind": "codes", "name": "ill", "definition": "ill", "codes": ["no", "yes"]}
    rules = {"smallest_cell": CELL, "fewest_sites": SMALLEST, "newton_rounds": 3}
    return {"kind": "statistics", "concepts": [*_concepts(), ill], "analyses": _analyses(generator)} | rules


def _network(generator: np.random.Generator) -> dict[str, Any]:
    method = (GLOBAL_LAYERS, FEDERATED_AVERAGING, {"name": "fedprox"})[generator.integers(0, 3)]
    shape = {"architecture": {"name": "dense", "hidden": [4]}, "columns": [*NUMBERS, "stage"], "outputs": 1}
    return {
        "kind": "network", "method": method, **({"architecture": NETWORK} if method == GLOBAL_LAYERS else shape),
        "schedule": {"aggregate": "every-batch", "epochs": 2, "batches_per_epoch": 2}, "weighting": {"name": "equal"},
        "optimiser": {"name": "sgd", "learning_rate": 0.1}, "start": {"name": "equal", "seed": 7},
    }  # fmt: skip


def _analyses(generator: np.random.Generator) -> list[dict[str, Any]]:
    return [{"name": name} | _analysis(generator) for name in ("one", "two")[: generator.choice([1, 2], p=[0.7, 0.3])]]


def _analysis(generator: np.random.Generator) -> dict[str, Any]:
    by, x, y = [None, "stage", "ill"][generator.integers(0, 3)], *generator.permutation(NUMBERS).tolist()
    few = slice(generator.integers(1, 4))
    match generator.integers(0, 6):
        case 0:
            found = {"regression": {"family": "binomial", "outcome": "ill", "terms": [x, y, "stage"][few]}}
        case 1:
            found = {"regression": {"family": "poisson", "outcome": x, "terms": ["stage"], "exposure": y}}
        case 2:
            found = {"cox": {"time": x, "event": "ill", "terms": [y, "stage"][few]}}
        case 3:
            grid = {"grid": float(generator.choice([10, 20])), "to": 50.0}
            found = {"curve": {"time": x, "event": "ill", "by": by if by != "ill" else None} | grid}
        case _:
            columns = [name for name in (x, y, "stage", "ill") if name != by][few]
            found = {"table_one": {"columns": columns, "by": by, "bins": [None, 4][generator.integers(2)]}}
    return found


def _vary(generator: np.random.Generator, content: dict[str, Any], place: int) -> None:
    """Change a setting that plans of every kind have."""
    names, concepts = [site["name"] for site in content["sites"]], content.get("concepts") or [{}]
    few = names[: generator.integers(3, len(names) + 1)]
    match generator.integers(0, 8):
        case 0 | 7:
            for one in concepts if generator.random() < 0.5 else concepts[:1]:
                one["recorded_by"] = few
            if content.get("columns"):
                content["columns"][0] = {"name": NUMBERS[0], "recorded_by": few}
        case 1 if concepts[0].get("conversions"):
            concepts[0]["conversions"][0]["factor"] = 0.5005
        case 2 if "high" in concepts[0]:
            concepts[0]["high"] = float(generator.choice([60.0, 90.0, 95.0, 120.0]))
        case 3:
            content["sites"] = content["sites"][:-1] if len(names) > 4 else content["sites"]
        case 4 if len(names) < len(SITES):
            more = next(name for name in SITES if name not in names)
            content["sites"].append({"name": more, "identity": identity_of(more)})
        case 5:
            content["study"] = f"another-{place}"
        case 6 if concepts[-1].get("codes"):
            concepts[-1]["codes"] = concepts[-1]["codes"][::-1]


def _vary_kind(generator: np.random.Generator, content: dict[str, Any], place: int) -> None:
    """Change a setting that only plans of this kind have."""
    match content["kind"], generator.integers(0, 6):
        case "prior", 0 | 1:
            content["ridge"] = 11.0
        case "prior", 2 | 3:
            content["concepts"] = content["concepts"][:1]
        case "prior", _:
            content["fewest_sites"] = SMALLEST + 1
        case "statistics", 0:
            content["newton_rounds"] = 4
        case "statistics", 1:
            content["smallest_cell"] = CELL + 1
        case "statistics", _:
            content["analyses"] = _analyses(generator)
        case "network", 0 | 1:
            content["weighting"] = {"name": "rows", "largest_rows": int(generator.choice([16, 32, 64]))}
        case "network", 2:
            content["masking"] |= {"clipping_range": 4.0}
        case "network", 3:
            content["masking"] |= {"bits": 16}
        case "network", 4:
            content["optimiser"]["learning_rate"] = 0.2
        case "network", _:
            content["method"] = {"name": "fedprox", "strength": 0.1}
