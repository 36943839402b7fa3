"""Searches sums for a linear combination that depends on few sites or on few patients alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations

import numpy as np

from tests.hostile.law_histories import CELL, CODES, SMALLEST, STAGES, Kind
from tests.hostile.law_sums import BEYOND, LOW, MISSING, POINTS, PRIME, PROBES, SHAPE, Integers, Sum

Rows = Mapping[str, Sequence[Kind]]  # by site
# Places of the grid between which one number alone differs, by number and what the other one is.
_LINES = [[[POINTS.index((x, y)[::step]) for x in range(BEYOND + 1)] for y in (MISSING, BEYOND)] for step in (1, -1)]


def isolating(sums: Sequence[Sum], rows: Sequence[Rows], generator: np.random.Generator) -> tuple[int, list[str]]:
    """Search sets of too few sites, and of too few patients; how many sets, and those that a combination isolates. A
    site is in a sum if a row of it could be. `rows` has those of each place in the history."""
    searched, broken = 0, list[str]()
    for search in (_few_sites, _few_patients):
        for name, isolates in search(sums, rows, generator):
            searched += 1
            broken += [name] if isolates else []
    return searched, broken


def _few_sites(sums: Sequence[Sum], _: Sequence[Rows], generator: np.random.Generator) -> Iterator[tuple[str, bool]]:
    """Yield each set of one site less than the smallest set, and whether a combination is zero outside and not inside.
    What isolates fewer sites isolates these."""
    names = sorted({name for one in sums for name in (*one.functions, *one.voids)})
    nothing = np.zeros(SHAPE, np.int64)
    by_site = {name: np.stack([one.functions.get(name, nothing).ravel() for one in sums]) for name in names}
    by_site[""] = np.eye(len(sums), dtype=np.int64)[:, [place for place, one in enumerate(sums) if one.voids]]
    parts = {name: _projected(matrix, generator) for name, matrix in by_site.items()}
    rank = _rank(sum(parts.values()))
    for few in combinations(names, SMALLEST - 1):
        yield f"the sites {few}", _rank(sum(part for name, part in parts.items() if name not in few)) < rank


def _few_patients(
    sums: Sequence[Sum], rows: Sequence[Rows], generator: np.random.Generator
) -> Iterator[tuple[str, bool]]:
    """Yield each set of fewer patients than the smallest cell, of one or two classes that all sums treat alike."""
    matrix, owners = _matrix(sums, rows)
    classes = _classes(sums, rows)
    class_of = {patient: place for place, one in enumerate(classes) for patient in one}
    of = [frozenset(class_of.get(patient, -1) for patient in one) for one in owners]
    small = [place for place, one in enumerate(classes) if len(one) < CELL]
    can_be_inside = np.array([len(one) <= 2 and one <= {*small} for one in of])
    outside = _projected(matrix[:, ~can_be_inside], generator)
    rest, of_rest = matrix[:, can_be_inside], [one for one, flag in zip(of, can_be_inside, strict=True) if flag]
    reduced, pivots = _echelon(np.concatenate([outside, rest], axis=1))
    width = outside.shape[1]
    leading = [(row, of_rest[column - width]) for row, column in enumerate(pivots) if column >= width]
    for few in (*((one,) for one in small), *combinations(small, 2)):
        if sum(len(classes[one]) for one in few) >= CELL:
            continue
        own = [row for row, of_pivot in leading if of_pivot <= {*few}]
        isolates = False
        if own:
            is_outside = np.array([True] * width + [not one <= {*few} for one in of_rest])
            isolates = _rank(reduced[own][:, is_outside]) < len(own)
        if isolates:  # random combinations or a small prime can only lose rank
            isolates = _rank(matrix[:, [not one <= {*few} for one in of]]) < _rank(matrix)
        yield f"the patients {sorted(name for one in few for name in classes[one])}", isolates


def _matrix(sums: Sequence[Sum], rows: Sequence[Rows]) -> tuple[Integers, list[set[str]]]:
    """Return what each sum has of each atom, and the patients behind each atom. An atom is what a site's rows with
    equal values of some columns add, as far as it follows from numbers: one column for each probe. What follows from
    codes alone, and that numbers are there, is one atom each for equal codes."""
    places, owners, entries = dict[object, int](), list[set[str]](), list[tuple[int, int, int]]()

    def column(key: object) -> int:
        if key not in places:
            places[key] = len(owners)
            owners.append(set())
        return places[key]

    alike = _equal_codes(sums)
    for number, one in enumerate(sums):
        groups: dict[object, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))  # by codes: atoms of a site
        for site in one.voids:
            entries.append((number, column((site, "void", number)), 1))
            owners[-1].add("")  # nobody
        for site, function in one.functions.items():
            uses, known = _uses(function), dict[object, tuple[int, ...]]()
            for kind in rows[one.place][site]:
                code, at = alike[site][kind.codes], (kind.codes, kind.inside)
                if at not in known:
                    known[at] = tuple(function[kind.codes, _levels(kind.inside)].tolist())
                base, lowest, *high = known[at]
                values = tuple(
                    (None if is_inside is None else value if is_inside else "beyond") if is_used else ""
                    for value, is_used, is_inside in zip(kind.values, uses, (*kind.inside, True, True), strict=True)
                )
                patient = "" if CODES[code][0] < 0 else kind.patient  # a number of missing codes shows no value
                is_pair = all(uses[:2]) and None not in kind.inside  # who has both shows a value of each
                there = (site, values) if is_pair else (site, "there", code)
                atoms = [((site, "codes", code), base, patient), (there, lowest - base, patient)]
                atoms += [((site, values, probe), term - lowest, kind.patient) for probe, term in enumerate(high)]
                for key, term, owner in atoms:
                    if term:
                        place = column(key)
                        entries.append((number, place, term))
                        owners[place].add(owner)
                        groups[values[2:]][site].add(place)
        for codes, by_site in groups.items():
            if codes != ("", "") and len(by_site) == 1:  # not defended: a code that one hospital has
                for place in next(iter(by_site.values())):
                    owners[place].add("")
    matrix = np.zeros((len(sums), len(owners)), np.int64)
    for number, place, term in entries:
        matrix[number, place] += term
    return np.unique(matrix % PRIME, axis=0), owners


@cache
def _levels(inside: tuple[bool | None, bool | None]) -> list[int]:
    """Return where a row is in the grid without numbers, and if those in their range are low or at each probe."""
    found = [[MISSING if one is None else place if one else BEYOND for one in inside] for place in (LOW, *PROBES)]
    return [POINTS.index((x, y)) for x, y in ([MISSING, MISSING], *found)]


def _uses(function: Integers) -> tuple[bool, bool, bool, bool]:
    """Return whether a function depends on each value of a row."""
    whole = function.reshape(1 + len(STAGES), 2, -1)
    stage, ill = (bool((whole != whole.take([0], axis)).any()) for axis in range(2))
    x, y = (any((whole[..., one] != whole[..., one[:1]]).any() for one in lines) for lines in _LINES)
    return x, y, stage, ill


def _equal_codes(sums: Sequence[Sum]) -> dict[str, list[int]]:
    """Return for each site which codes all sums treat alike, as the first place of such codes."""
    found = {}
    for site in {name for one in sums for name in one.functions}:
        whole = np.stack([one.functions[site] for one in sums if site in one.functions], axis=1)
        texts = [one.tobytes() for one in whole]
        found[site] = [texts.index(one) for one in texts]
    return found


def _classes(sums: Sequence[Sum], rows: Sequence[Rows]) -> list[set[str]]:
    """Return sets of patients of one site whose rows all sums treat alike."""
    seen: dict[str, list[object]] = defaultdict(list)
    for place, by_site in enumerate(rows):
        for site, kinds in by_site.items():
            functions = [one.functions[site] for one in sums if one.place == place and site in one.functions]
            whole, known = np.stack(functions) if functions else np.zeros((1, *SHAPE), np.int64), dict[object, int]()
            for kind in kinds:
                key = kind.codes, kind.inside
                if key not in known:
                    known[key] = hash(whole[:, kind.codes, _levels(kind.inside)[1:]].tobytes())
                seen[kind.patient].append((place, known[key]))
    found: dict[object, set[str]] = defaultdict(set)
    for patient, treated in seen.items():
        found[patient[0], tuple(sorted(treated))].add(patient)  # a patient's name begins with that of the site
    return [*found.values()]


def _projected(matrix: Integers, generator: np.random.Generator) -> Integers:
    """Return random combinations of the columns: int64 of shape (rows, rows + 8), with the same rank almost surely."""
    drawn = generator.integers(0, PRIME, (matrix.shape[1], len(matrix) + 8))
    total = np.zeros((len(matrix), drawn.shape[1]), np.int64)
    for start in range(0, matrix.shape[1], 1024):
        part = slice(start, start + 1024)
        total = (total + (matrix[:, part].astype(np.float64) @ drawn[part].astype(np.float64)).astype(np.int64)) % PRIME
    return total


def _rank(matrix: Integers) -> int:
    return len(_echelon(matrix)[1])


def _echelon(matrix: Integers) -> tuple[Integers, list[int]]:
    """Return the reduced rows modulo the prime, and the column of the leading 1 of each."""
    rows, pivots = matrix % PRIME, list[int]()
    for column in range(rows.shape[1]):
        rank = len(pivots)
        if rank == len(rows):
            break
        below = np.flatnonzero(rows[rank:, column])
        if not len(below):
            continue
        pivot = rank + int(below[0])
        rows[[rank, pivot]] = rows[[pivot, rank]]
        rows[rank] = rows[rank] * pow(int(rows[rank, column]), -1, PRIME) % PRIME
        others = rows[:, column].copy()
        others[rank] = 0
        touched = np.flatnonzero(others)
        rows[touched] = (rows[touched] - others[touched, None] * rows[rank]) % PRIME
        pivots.append(column)
    return rows[: len(pivots)], pivots
