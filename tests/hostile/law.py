"""The law of answered sums, searched: `python -m tests.hostile.law [--quick]`.

The law: no linear combination of all sums that honest hospitals answer depends on fewer sites than the smallest set, or
on fewer patients than the smallest cell; and what leaves a hospital is the same for tables that differ in one patient.

A generator draws histories of two or three approved plans whose settings vary, with changes of tables between them.
Which sums are answered is decided by the real code alone: the policy, the comparison of sets and rules with the gate's
store, the witness of the memory, and the memory of answered values. Each answered sum is a vector of exact integers
modulo a prime over monomials of the rows: one for each site and for each class of rows that every sum treats alike. A
combination that is zero outside a set of few sites or of few patients, and not inside, breaks the law: then the rank of
all sums is larger than their rank outside. Each rule is also removed in turn, and the search must find its lack.

The last line is `histories= combinations_searched= isolating= transcripts_compared= differing=`.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from pathlib import Path
from typing import Any, Final

import numpy as np

import site_agent.gate.site_masking
from host.record_store import Store
from protos.masking.answered_sets import Answer, why_unlike
from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.plan.manifest import manifest_of
from protos.plan.plan import plan_from_json
from protos.plan.prior_plan import PriorPlan
from site_agent.gate.policy import refusals
from site_agent.gate.site_masking import SiteMasking
from site_agent.trainer import answered_values, worker
from site_agent.trainer.answered_values import ReleasedBefore, concepts_of, newest_head
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.concept_columns import MappedNumber, mapped_columns
from tests.federation import hospital, identity_key, identity_of
from tests.hostile.attack import patched
from tests.hostile.compared_transcripts import is_told_apart

SITES: Final = "abcdef"
CELL, SMALLEST = 5, 3
ROWS: Final = 24
UNIT, OTHER_UNIT = "mg/dl", "umol/l"
PRIME: Final = (1 << 20) - 3  # sums of products of two residues are exact in float64
CONCEPTS: Final = ("creatinine", "urea")
Rows = dict[int, tuple[float, ...]]  # by patient: a value of each concept, NaN if missing, and the outcome
Matrix = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class House:
    """One hospital: its rows now, its unit of creatinine, its folder, and the newest head in its audit log."""

    name: str
    unit: str
    folder: Path
    rows: Rows
    head: str = ""
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.store = Store(self.folder / "gate.sqlite")

    @property
    def contract(self) -> Contract:
        """The columns, with the concept of each and this hospital's unit."""
        columns: list[dict[str, object]] = [
            {"name": name, "role": "feature", "type": "numeric", "missing": "median", "concept": name}
            | ({"unit": self.unit} if name == CONCEPTS[0] else {})
            for name in CONCEPTS
        ]
        columns.append({"name": "ill", "role": "target", "task": "binary", "positive": ["1"]})
        return Contract.model_validate_json(json.dumps({"format": {"header": True}, "columns": columns}))

    @property
    def table(self) -> Table:
        """The rows as the trainer reads them."""
        values = np.array([*self.rows.values()], np.float64)
        features = {name: values[:, place] for place, name in enumerate(CONCEPTS)}
        return Table(contract=self.contract, rows=len(values), features=features, target=values[:, -1], patients=None)


Row = tuple[str, tuple[float, ...]]  # a site, and a patient's values; equal rows are one
Atom = tuple[str, str, tuple[float, ...]]  # a site, a monomial, and the values of its cells


def plan_of(generator: np.random.Generator, place: int, before: PriorPlan | None) -> PriorPlan:
    """A plan drawn at random. A later one mostly differs from the one before in one setting."""
    if before is None:
        sites = generator.choice(list(SITES), generator.integers(4, 7), replace=False)
        concepts = [
            {
                "kind": "number", "name": name, "definition": name, "low": 0.0, "high": 100.0,
                **({"unit": UNIT, "conversions": [{"unit": OTHER_UNIT, "factor": 0.5}]} if name == CONCEPTS[0] else {}),
            }
            for name in CONCEPTS[: generator.integers(1, 3)]
        ]  # fmt: skip
        listed = [{"name": name, "identity": identity_of(name)} for name in sorted(sites)]
        content = {
            "kind": "prior", "study": f"study-{place}", "version": 1, "concepts": concepts, "sites": listed,
            "fewest_sites": int(generator.integers(3, 5)), "assumed_colluders": 1,
        }  # fmt: skip
        return _read(content)
    content = json.loads(before.canonical) | {"version": before.version + 1}
    names, concept = [site["name"] for site in content["sites"]], content["concepts"][0]
    match generator.integers(0, 10):
        case 0:
            concept["recorded_by"] = names[: len(names) - 1] if len(names) > 4 else None
        case 1 if concept.get("conversions"):
            concept["conversions"][0]["factor"] = 0.5005
        case 2:
            concept["high"] = float(generator.choice([60.0, 90.0, 95.0, 120.0]))
        case 3:
            content["sites"] = content["sites"][:-1] if len(names) > 4 else content["sites"]
        case 4 if len(names) < len(SITES):
            more = next(name for name in SITES if name not in names)
            content["sites"].append({"name": more, "identity": identity_of(more)})
        case 5:
            content["ridge"] = 11.0
        case 6:
            content["study"] = f"another-{place}"
        case 7:
            content["concepts"] = content["concepts"][:1]
    return _read(content)


def _read(content: dict[str, Any]) -> PriorPlan:
    try:
        plan = plan_from_json(json.dumps(content))
    except ValueError:  # no plan, so nobody can announce it
        return _read(content | {"concepts": [one | {"recorded_by": None} for one in content["concepts"]]})
    assert isinstance(plan, PriorPlan)
    return plan


def row_of(generator: np.random.Generator) -> tuple[float, ...]:
    """One patient: whole numbers, so that sums are exact; few beyond a limit."""
    creatinine = float(generator.integers(1, 200)) if generator.random() < 0.95 else np.nan
    urea = float(generator.integers(1, 100)) if generator.random() < 0.7 else np.nan
    return creatinine, urea, float(generator.integers(0, 2))


def change(generator: np.random.Generator, house: House, patients: Iterator[int]) -> None:
    """What happens in a hospital between two plans: visits, corrections, exchanged cells, or a lost folder."""
    names = list(house.rows)
    match generator.integers(0, 8):
        case 0 | 1:
            for _ in range(int(generator.choice([1, 2, 7, 12]))):
                house.rows[next(patients)] = row_of(generator)
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
                house.rows[next(patients)] = (*values, float(place // 2 % 2))
        case 5:
            for path in (house.folder / "models").glob("*"):
                path.unlink()
            house.rows[next(patients)] = row_of(generator)


def is_admitted(house: House, plan: PriorPlan) -> bool:
    """Whether the real policy, gate store, witness and memory let a hospital answer. It then has answered."""
    policy = hospital(house.name, house.folder, smallest_sites=SMALLEST, smallest_cell=CELL).policy
    manifest, run = manifest_of(plan), plan.run_name
    if refusals(policy, plan, manifest, site=house.name, identity=identity_of(house.name)):
        return False
    masking = SiteMasking(
        run=run, plan=plan, manifest=manifest, site=house.name, identity_key=identity_key(house.name),
        store=house.store,
    )  # fmt: skip
    table, models = house.table, house.folder / "models"
    mapped = mapped_columns(plan.concepts, table.contract, house.name)
    rows = np.arange(table.rows)
    used = concepts_of(plan.columns, mapped, table, rows) | answered_values.outcomes_of(table, rows)
    try:
        if masking._why_not is not None:
            raise MaskingRefused(masking._why_not)
        answered_values.require_head(models, house.head)
        answered_values.remember(models, run, used, CELL)
    except (MaskingRefused, answered_values.MemoryLost, ReleasedBefore):
        return False
    masking._steps.add(0, 0, bytes(32), bytes(32))
    house.head = newest_head(models)
    return True


@dataclass
class Answered:
    """Everything that the coordinator has: the answered sums, and the rows behind each monomial."""

    sums: list[dict[Atom, int]] = field(default_factory=list)
    rows_of: dict[Atom, set[Row]] = field(default_factory=lambda: defaultdict(set))
    patterns: dict[Row, list[tuple[object, ...]]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[Row, int] = field(default_factory=dict)
    places: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def is_steady(self, atom: Atom) -> bool:
        """Whether the rows behind a monomial are in all answers of its site. It may show enough new rows by itself."""
        for site, values in self.rows_of[atom]:
            times = Counter(pattern[0] for pattern in self.patterns[site, values])  # equal rows may have come since
            if times.keys() != self.places[site] or len(set(times.values())) > 1:
                return False
        return True

    def add(self, plan: PriorPlan, houses: Sequence[House], place: int) -> None:
        """Add all first sums of a plan: of each concept, of each pair, of the outcome, and with it."""
        found: dict[tuple[str, ...], dict[Atom, int]] = defaultdict(lambda: defaultdict(int))
        for house in houses:
            self.places[house.name].add(place)
            present: dict[Row, int] = defaultdict(int)
            for values in house.rows.values():
                row = house.name, values
                present[row] += 1
                factors = _factors(plan, house, values)
                self.patterns[row].append((place, *((name, power) for name, (power, *_) in factors.items())))
                for names, monomials in _products(factors):
                    atom = house.name, " ".join(power for _, power, _ in monomials), tuple(v for *_, v in monomials)
                    coefficient = 1
                    for scale, _, _ in monomials:
                        coefficient = coefficient * scale % PRIME
                    found[names][atom] = (found[names][atom] + coefficient) % PRIME
                    self.rows_of[atom].add(row)
            for row, number in present.items():
                self.counts[row] = max(self.counts.get(row, 0), number)
        self.sums += [dict(one) for one in found.values()]


def _factors(plan: PriorPlan, house: House, values: tuple[float, ...]) -> dict[str, tuple[str, int, float]]:
    """Return for each column of a row its monomial, the factor of it in the plan's unit interval, and its value."""
    found: dict[str, tuple[str, int, float]] = {"rows": ("1", 1, 0.0), "ill": ("y", 1, values[-1])}
    if not values[-1]:
        del found["ill"]
    columns = mapped_columns(plan.concepts, house.contract, house.name)
    for concept, mapped, value in zip(plan.concepts, columns, values, strict=False):
        if not isinstance(mapped, MappedNumber) or np.isnan(value):
            continue
        name = concept.name
        if not mapped.low <= mapped.factor * value <= mapped.high:
            found[name] = (f"1 of {name}", 1, 0.0)
            continue
        ratio = Fraction(str(mapped.factor)) / Fraction(mapped.high - mapped.low)
        found[name] = (f"{name}", ratio.numerator * pow(ratio.denominator, -1, PRIME) % PRIME, value)
    return found


def _products(
    factors: dict[str, tuple[str, int, float]],
) -> Iterator[tuple[tuple[str, ...], list[tuple[int, str, float]]]]:
    """Yield each sum to which a row adds, with its monomials: factor, name and value of each cell."""
    for name, (power, scale, value) in factors.items():
        yield (name,), [(scale, power, value)]
        if name not in ("rows", "ill"):
            yield ("count", name), [(1, f"1 of {name}", 0.0)]
    for one, other in combinations_with_replacement(factors, 2):
        if one != "rows" and (one, other) != ("ill", "ill"):
            (first, scale, value), (second, more, number) = factors[one], factors[other]
            yield (one, other), [(scale, first, value), (more, second, number)]


def isolating(found: Answered, generator: np.random.Generator) -> tuple[int, list[str]]:
    """Search all sets of too few sites, and of too few patients that the sums treat alike.

    Returns:
        the number of sets that were searched, and those outside of which a combination can be zero without being zero.
        New rows of one site alone may be visible if they are enough, so for sites only other rows count.
    """
    atoms = list(found.rows_of)
    place = {atom: number for number, atom in enumerate(atoms)}
    matrix = np.zeros((len(found.sums), len(atoms)), np.int64)
    for number, one in enumerate(found.sums):
        for atom, coefficient in one.items():
            matrix[number, place[atom]] = coefficient
    classes: dict[object, list[Row]] = defaultdict(list)
    for row, pattern in found.patterns.items():
        classes[row[0], tuple(sorted(map(repr, pattern)))].append(row)
    size = {key: sum(found.counts[row] for row in rows) for key, rows in classes.items()}
    of_row = {row: number for number, rows in enumerate(classes.values()) for row in rows}
    of_atom = [{of_row[row] for row in found.rows_of[atom]} for atom in atoms]
    names = sorted({atom[0] for atom in atoms})
    everything, steady = np.ones(len(atoms), np.bool_), np.array([found.is_steady(atom) for atom in atoms])
    groups = []
    for count in range(1, SMALLEST):
        for few in combinations(names, count):
            groups.append((f"the sites {few}", np.array([atom[0] in few for atom in atoms]), steady))
    small = [number for number, key in enumerate(classes) if size[key] < CELL]
    sizes = [*size.values()]
    for few_classes in (*((one,) for one in small), *combinations(small, 2)):
        if sum(sizes[number] for number in few_classes) < CELL:
            inside = np.array([of <= set(few_classes) for of in of_atom])
            groups.append((f"{sum(sizes[number] for number in few_classes)} patients", inside, everything))
    ranks = {id(of): _rank(_projected(matrix[:, of], generator)) for of in (steady, everything)}
    broken = []
    for name, inside, of in groups:
        # A random projection or a small prime can only lose rank, so a finding is checked again.
        if all(_rank(_projected(matrix[:, of & ~inside], generator)) < ranks[id(of)] for _ in range(3)):
            broken.append(name)
    return len(groups), broken


def _projected(matrix: Matrix, generator: np.random.Generator) -> Matrix:
    """Return random combinations of the columns: int64 of shape (rows, rows + 8), with the same rank almost surely."""
    width = len(matrix) + 8
    if matrix.shape[1] <= width:
        return matrix
    drawn = generator.integers(0, PRIME, (matrix.shape[1], width))
    total = np.zeros((len(matrix), width), np.int64)
    for start in range(0, matrix.shape[1], 1024):
        part = slice(start, start + 1024)
        total = (total + (matrix[:, part].astype(np.float64) @ drawn[part].astype(np.float64)).astype(np.int64)) % PRIME
    return total


def _rank(matrix: Matrix) -> int:
    """Return the rank modulo the prime."""
    rows, rank = matrix.copy() % PRIME, 0
    for column in range(rows.shape[1]):
        pivots = np.flatnonzero(rows[rank:, column])
        if not len(pivots):
            continue
        pivot = rank + int(pivots[0])
        rows[[rank, pivot]] = rows[[pivot, rank]]
        rows[rank] = rows[rank] * pow(int(rows[rank, column]), -1, PRIME) % PRIME
        rows[rank + 1 :] = (rows[rank + 1 :] - rows[rank + 1 :, column, None] * rows[rank]) % PRIME
        rank += 1
        if rank == len(rows):
            break
    return rank


def history(seed: int, folder: Path) -> tuple[int, list[str]]:
    """Play one history in which persons allow no plan beside another; the sets that were searched, what isolates."""
    generator, patients = np.random.default_rng(seed), iter(range(10**9))
    houses = {
        name: House(
            name, OTHER_UNIT if generator.random() < 0.3 else UNIT, folder / name,
            {next(patients): row_of(generator) for _ in range(ROWS)},
        )
        for name in SITES
    }  # fmt: skip
    answered, plan = Answered(), None
    for place in range(int(generator.integers(2, 4))):
        plan = plan_of(generator, place, plan)
        taking_part = [houses[name] for name in plan.site_names]
        decisions = [is_admitted(house, plan) for house in taking_part]  # a refusal of one does not stop the others
        if all(decisions):
            answered.add(plan, taking_part, place)
        for name in generator.choice(list(SITES), generator.integers(0, 3), replace=False):
            change(generator, houses[str(name)], patients)
    for house in houses.values():
        house.store.close()
    return isolating(answered, generator) if answered.sums else (0, [])


def searched(
    seeds: range, weakened: Callable[[], AbstractContextManager[Any]], *, first: bool
) -> tuple[int, int, list[str]]:
    """Play histories; how many, how many sets were searched, and what isolates. `first` stops at the first finding."""
    played, sets, broken = 0, 0, list[str]()
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None  # made-up patients, and many small files
    with weakened():
        for seed in seeds:
            with tempfile.TemporaryDirectory(prefix="law-", dir=fast) as folder:
                count, found = history(seed, Path(folder))
            played, sets = played + 1, sets + count
            broken += [f"history {seed}: {one}" for one in found]
            if first and broken:
                break
    return played, sets, broken


def _without(reason: Reason) -> AbstractContextManager[None]:
    """Return a copy of the gate that never compares sums for this reason."""

    def lenient(answer: Answer, others: Iterable[Answer]) -> Reason | None:
        return next((one for other in others if (one := why_unlike(answer, other)) not in (None, reason)), None)

    return patched(site_agent.gate.site_masking, why_not_answered=lenient)


def _told(error: Exception) -> int:
    raise error


def _source_alone(name: str, values: Any, *_: object) -> dict[str, answered_values.Values]:
    return {name: answered_values.Values(values=values)}


# What each weakened copy lacks.
WEAKENED: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "the sets of sites": lambda: _without(Reason.OTHER_SETS),
    "the rules": lambda: _without(Reason.OTHER_RULES),
    "the memory of values": lambda: patched(answered_values, remember=lambda *used: None),
    "pairs of columns in the memory": lambda: patched(
        answered_values, _surely_enough=lambda new, *_: np.ones((new.shape[1],) * 2, np.bool_)
    ),
    "mapped values in the memory": lambda: patched(answered_values, numbers_of=_source_alone),
    "the witness of the memory": lambda: patched(answered_values, require_head=lambda folder, head: None),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Search; the exit status is 0 only if the law holds, and each weakened copy breaks it."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.law", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="Play 100 histories instead of 1,000.")
    options = parser.parse_args(arguments)
    count, pairs = (100, 8) if options.quick else (1000, 100)
    kinds = "statistics", "prior", "network", "network"  # every other pair has two rounds
    logging.disable(logging.CRITICAL)
    is_found = True
    for name, weakened in WEAKENED.items():
        tried, _, broken = searched(range(1000), weakened, first=True)
        print(f"without {name}: {broken[0] if broken else f'NOTHING FOUND in {tried} histories'}", flush=True)
        is_found = is_found and bool(broken)
    with patched(worker, _void=_told):
        is_told = all(is_told_apart(kind, 1) for kind in kinds)
    print(f"without voids: {'transcripts differ' if is_told else 'NO DIFFERENCE FOUND'}", flush=True)
    is_found = is_found and is_told
    played, sets, broken = searched(range(count), nullcontext, first=False)
    print("\n".join(broken), end="\n" if broken else "")
    differing = sum(is_told_apart(kinds[pair % 4], 1 + pair % 2) for pair in range(pairs))
    print(
        f"histories={played} combinations_searched={sets} isolating={len(broken)} transcripts_compared={pairs} "
        f"differing={differing}"
    )
    return 0 if is_found and not broken and not differing else 1


if __name__ == "__main__":
    sys.exit(main())
