"""Remembers on disk the values that this site's sums used, for statistics, regressions and networks alike.

Two sums over tables that differ by one patient differ by that patient's values. So another run gets columns only if
they have the same values as at every earlier answer, or enough other values. The rules:

* values are remembered before a sum leaves. One run uses one state of its columns, however often it is repeated;
* since each earlier run, in each column and in each pair of columns, either no row changed or rows of at least
  `smallest_cell` patients did. A row that changed in several columns is one row, and missing values are no rows;
* a difference may be of any patients with these values whose rows changed; the fewest who can make it count. With new
  pseudonyms these are all patients. Fewer may not even exchange rows;
* a value that the plan's range replaced by a limit hides no other row, because anybody knows it, and neither does one
  that changed by less than about a thousandth, as all do in an export with fewer digits, or to one of few
  values that most changed rows have, such as 0. Only for pairs of two codes no number of rows is required;
* source values are remembered, and values as the plan maps them, by the concept's name. So a changed range is a change
  of values, and a column that got another name is the same column;
* the disk has no value. It has keyed digests under the site's secret, in the order of the rows;
* each answer has a head, a keyed digest of everything remembered so far. The gate writes it to the audit log with
  each release. A memory without the newest head of the log was deleted or copied back, and counts as used up.

The sums of equal values under other settings are compared by the gate (protos/masking/answered_sets.py).
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from host.record_store import Store
from protos.errors import RefusedError
from protos.plan.canonical import pack
from protos.plan.concepts import ConceptColumn, LowAndHigh
from site_agent.trainer.data.columns import CategoricalFeature
from site_agent.trainer.data.preprocessing import Rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.disk import recording, site_secret
from site_agent.trainer.prior.concept_columns import Mapped, MappedCode, MappedNumber

Float64: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Integers: TypeAlias = npt.NDArray[np.int64]
# 0 for a missing value; odd for a value that hides others. Some bits are those of the value to three digits.
Digests: TypeAlias = npt.NDArray[np.uint64]

_MOST_USUAL: Final = 4
_MOST_CODES: Final = 24
_ROUNDED, _CUT_OFF = 17, 1  # where 16 bits of a digest begin
_PATIENTS: Final = ""  # no column has this name
_COUNTS: Final = ("row=first", "row=further")
_FACTORS: Final = re.compile(r"(?:^|:)([a-z][a-z0-9-]*?)(?==|,|\d[:,])")  # concepts in the name of a product
_NEVER: Final = "Nothing was counted, nothing was trained and nothing was sent."


@dataclass(frozen=True, kw_only=True)
class Compared:
    """How many patients have other values than in an earlier run, and the columns and pairs in which too few do."""

    run: str
    patients: int
    too_few: tuple[str, ...] = ()


def in_words(columns: Sequence[str]) -> str:
    """Return the first ten columns of the table or concepts of a plan behind columns and pairs of columns."""
    parts = [one for pair in columns for one in pair.split(" with ")]
    found = (_FACTORS.findall(one) if one.endswith(", product") else re.split(", |=", one)[:1] for one in parts)
    names = dict.fromkeys("number of rows" if name == "row" else name for each in found for name in each)
    return ", ".join([*names][:10])


class ReleasedBefore(RefusedError):
    """Sums of almost the same rows were sent for another run. Their difference would reveal patients."""

    def __init__(self, columns: Sequence[str], smallest_cell: int) -> None:
        super().__init__(
            what=f"Sums of {in_words(columns)} were already sent for another study, and too few rows are new.",
            consequence=_NEVER,
            remedy="These are the columns in which the values of few patients differ between the two studies. Use the "
            f"sums of that study or the table of that time, or wait until at least {smallest_cell} patients have new "
            "values in each column, and in each pair of columns. Patients keep the identifiers of that time.",
        )


class MemoryLost(RefusedError):
    """The memory of answered values is missing or older than the audit log says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            what=f"The folder {folder} does not have all values that this site has used according to its audit log.",
            consequence=f"All values count as used up. {_NEVER}",
            remedy="Copy the newest backup of this folder back. Without one, this site can answer only plans with the "
            "key `privacy`, whose noise protects patients in every comparison.",
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Values:
    """A column, one value for each row: float64 of shape (rows,), NaN if missing.

    `hides` is False for values that the plan's range replaced; None for none. A code is a column of its own, which has
    a value in the rows with this code.
    """

    values: Float64
    hides: Bools | None = None
    is_code: bool = False

    def only(self, kept: Bools, further: int) -> Values:
        """Return the column with values in the kept rows alone, and so many further rows without one."""
        hides = None if self.hides is None else np.append(self.hides, np.zeros(further, np.bool_))
        values = np.append(np.where(kept, self.values, np.nan), np.full(further, np.nan))
        return replace(self, values=values, hides=hides)


def codes_of(name: str, places: Float64, codes: Sequence[str]) -> dict[str, Values]:
    """Return a column for each code. `places` has the position among `codes` for each row, others if missing."""
    values = ((code, np.where(places == place, 1.0, np.nan)) for place, code in enumerate(codes))
    return {f"{name}={code}": Values(values=found, is_code=True) for code, found in values}


def numbers_of(
    name: str, values: Float64, low: float, high: float, mapped: Float64 | None = None, concept: str | None = None
) -> dict[str, Values]:
    """Return numbers as the table has them, as a plan maps them (converted, limited), and those within the range."""
    concept, converted = concept or name, values if mapped is None else mapped
    is_inside = (low <= converted) & (converted <= high)
    limited = Values(values=np.clip(converted, low, high), hides=is_inside)
    within = Values(values=np.where(is_inside, values, np.nan))  # other factors change all rows, but not these
    return {name: Values(values=values), f"{concept}, mapped": limited, f"{concept}, within": within}


def features_of(table: Table, rows: Rows) -> dict[str, Values]:
    """Return the features of some rows as the table has them. An image is one value."""
    found: dict[str, Values] = {}
    for feature in table.contract.features:
        own = table.features[feature.name][rows]
        codes = feature.codes if isinstance(feature, CategoricalFeature) else None
        found |= {feature.name: Values(values=own)} if codes is None else codes_of(feature.name, own, codes)
    return found | {f"mark {place}": Values(values=marks[rows]) for place, marks in enumerate(table.marks)}


def outcomes_of(table: Table, rows: Rows, outcome: LowAndHigh | None = None) -> dict[str, Values]:
    """Return the outcome of some rows, and as a plan maps it if the outcome is a number."""
    if table.target is None:
        return {}
    target, own = table.contract.target, table.target[rows]
    if target.classes:
        return codes_of(target.name, own, target.classes)
    if outcome is not None:
        return numbers_of(target.name, own, outcome.low, outcome.high)
    return {target.name: Values(values=own)}


def concepts_of(
    concepts: Sequence[ConceptColumn], mapped: Sequence[Mapped], table: Table, rows: Rows
) -> dict[str, Values]:
    """Return the columns of some rows behind a plan's concepts, as the table has them and as the plan maps them."""
    source, found = features_of(table, rows), dict[str, Values]()
    for column, one in zip(concepts, mapped, strict=True):
        if isinstance(one, MappedNumber):
            own = table.features[one.feature][rows]
            found |= numbers_of(one.feature, own, one.low, one.high, one.converted(own), column.name)
        elif isinstance(one, MappedCode):
            own = table.features[one.feature][rows]
            found |= {name: values for name, values in source.items() if name.startswith(f"{one.feature}=")}
            found |= codes_of(f"{column.name}, mapped", one.values(own), ("no", "yes"))
    return found


def rows_of(patients: npt.NDArray[Any]) -> dict[str, Values]:
    """Return the first row of each patient and the further ones as two codes, because sums count rows and patients."""
    places = np.ones(len(patients))
    places[np.unique(patients, return_index=True)[1]] = 0.0
    return codes_of("row", places, ("first", "further"))


def patients_of(table: Table, rows: Rows) -> list[str] | None:
    """Return the patient of each row; None if each row is a patient."""
    return None if table.patients is None else [table.patients[row] for row in rows]


def remember(
    folder: Path, run: str, columns: Mapping[str, Values], smallest_cell: int, patients: Sequence[str] | None = None
) -> None:
    """Store on disk, before anything is sent, which values of which columns a run uses.

    Args:
        folder: the trainer's folder with the site's secret.
        columns: by name, with the same rows in the same order. A name has one meaning for all plans.
        smallest_cell: the least number of patients with a changed row.
        patients: the patient of each row; None if each row is a patient.

    Raises:
        ReleasedBefore: the values were used for another run, and too few are new; or for this run, and differ.
        OperatorError: the secret cannot be read, or the disk cannot be read or written.
    """
    now = digests_of(folder, columns, patients)
    contents = {name: _content(found) for name, found in now.items()}
    is_known, again = False, dict[str, None]()
    with recording(folder) as store:
        for other, before in _answers(store):
            if other == run:
                is_known = is_known or before == contents
                again |= dict.fromkeys(name for name in columns if before.get(name, contents[name]) != contents[name])
        for one in compared(store, run, columns, now, smallest_cell):
            again |= dict.fromkeys(one.too_few)
        if again:
            raise ReleasedBefore(list(again), smallest_cell)
        if not is_known:
            for name, found in now.items():
                store.write("INSERT OR IGNORE INTO contents VALUES (?, ?)", contents[name], found.tobytes())
            extend(store, site_secret(folder), run, contents)


def digests_of(folder: Path, columns: Mapping[str, Values], patients: Sequence[str] | None) -> dict[str, Digests]:
    """Return what is remembered of columns and patients, by the column's name. Arguments are those of `remember`."""
    secret = site_secret(folder)
    now = {name: _digests(_key(secret, name), column) for name, column in columns.items()}
    return now if patients is None else now | {_PATIENTS: _owners(secret, patients)}


def compared(
    store: Store, run: str, columns: Mapping[str, Values], now: Mapping[str, Digests], smallest_cell: int
) -> Iterator[Compared]:
    """Yield how the values of a run, with these digests, differ from each state of the columns that others used."""
    codes, seen = {name for name, column in columns.items() if column.is_code}, list[dict[str, str]]()
    for other, before in _answers(store):
        common = {name: before[name] for name in (*columns, _PATIENTS) if name in before}
        if other == run or not {*common} - {_PATIENTS} or common in seen:
            continue
        seen.append(common)
        if all(_content(now[name]) == common[name] for name in now if name in common):
            yield Compared(run=other, patients=0)  # all rows of all columns are equal
            continue
        then = {name: _read(store, content) for name, content in common.items()}
        mine = {name: now[name] for name in (*common, _PATIENTS) if name in now}
        yield _differing(other, mine, then, codes, smallest_cell)


def extend(store: Store, secret: bytes, run: str, facts: Mapping[str, str]) -> None:
    """Append what was answered to the memory, whose head then also stands for this."""
    text, newest = json.dumps(facts, sort_keys=True), _newest(store)
    store.write("INSERT INTO used (run, facts, head) VALUES (?, ?, ?)", run, text, _head(secret, newest, run, text))


def newest_head(folder: Path) -> str:
    """Return the head of the memory; empty if nothing is remembered. Raises StoreError."""
    with recording(folder) as store:
        return _newest(store)


def require_head(folder: Path, head: str) -> None:
    """Check that the memory has everything that the audit log's newest head stands for.

    Raises:
        MemoryLost: it was deleted, copied back or changed, or the site's secret is another one.
        OperatorError: the secret or the disk cannot be read.
    """
    secret, newest, is_there = site_secret(folder), "", not head
    with recording(folder) as store:
        for run, text, found in store.read("SELECT run, facts, head FROM used ORDER BY place"):
            newest = _head(secret, newest, run, text)
            if not hmac.compare_digest(newest, found):
                raise MemoryLost(folder)
            is_there = is_there or newest == head
    if not is_there:
        raise MemoryLost(folder)


def _answers(store: Store) -> Iterator[tuple[str, dict[str, str]]]:
    for run, text in store.read("SELECT run, facts FROM used WHERE run != '' ORDER BY place"):
        yield run, json.loads(text)


def _read(store: Store, content: str) -> Digests:
    found = store.read("SELECT digests FROM contents WHERE content = ?", content)
    if not found or blake3(found[0][0]).hexdigest() != content:
        raise MemoryLost(store.path.parent)
    return np.frombuffer(found[0][0], np.uint64)


def _content(found: Digests) -> str:
    return blake3(found.tobytes()).hexdigest()


def _newest(store: Store) -> str:
    return next((str(head) for (head,) in store.read("SELECT head FROM used ORDER BY place DESC LIMIT 1")), "")


def _head(secret: bytes, before: str, run: str, text: str) -> str:
    return hmac.digest(secret, pack("answered values", before, run, text), "sha256").hex()


def _key(secret: bytes, name: str) -> bytes:
    return hmac.digest(secret, pack("values of a column", name), "sha256")


def _digests(key: bytes, column: Values) -> Digests:
    """Return a keyed digest of each value. Two different values have the same one with probability 1e-9 at most."""
    mantissas, exponents = np.frexp(column.values)
    blocks = np.zeros((3, len(column.values), 2), np.float64)
    blocks[0, :, 0] = column.values + 0.0  # -0.0 becomes 0.0
    for kind, digits in enumerate((np.round(mantissas * 1024), np.floor(mantissas * 1024)), start=1):
        blocks[kind, :, 0], blocks[kind, :, 1] = np.ldexp(digits, exponents) + 0.0, float(kind)
    # Equal values must have equal digests, so each block is encrypted by itself.
    cipher = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()  # noqa: S305
    parts = np.frombuffer(cipher.update(blocks.tobytes()), np.uint64)[::2].reshape(3, -1)
    exact, rounded, cut = parts >> np.array([[33], [48], [48]], np.uint64)
    found = exact << np.uint64(33) | rounded << np.uint64(17) | cut << np.uint64(1) | np.uint64(1)
    if column.hides is not None:
        found = np.where(column.hides, found, found ^ np.uint64(1))
    return np.where(np.isnan(column.values), np.uint64(0), found)


def _owners(secret: bytes, patients: Sequence[str]) -> Digests:
    key = _key(secret, _PATIENTS)
    each = (blake3(name.encode("utf-8", "surrogatepass"), key=key).digest(length=8) for name in patients)
    return np.frombuffer(b"".join(each), np.uint64)


def _differing(
    run: str, now: Mapping[str, Digests], then: Mapping[str, Digests], codes: set[str], smallest_cell: int
) -> Compared:
    """Compare the same columns of two runs, alone and in pairs."""
    names, too_few = [name for name in now if name != _PATIENTS], list[str]()
    new, old = (np.stack([each[name] for name in names], axis=1) for each in (now, then))
    whose = [each.get(_PATIENTS, np.zeros(len(each[names[0]]), np.uint64)) for each in (now, then)]
    if (_PATIENTS in now) != (_PATIENTS in then):
        return Compared(run=run, patients=0, too_few=tuple(names))  # nobody knows whose rows changed
    is_code, is_count = (np.array([name in some for name in names]) for some in (codes, _COUNTS))
    rows = [np.column_stack([each[:, ~is_count], of]) for each, of in zip((new, old), whose, strict=True)]
    is_more, is_less = _beyond(*rows), _beyond(*reversed(rows))
    if _PATIENTS not in now:
        whose = [np.arange(len(each), dtype=np.uint64) for each in rows]
    more, fewer, owners = new[is_more], old[is_less], [whose[0][is_more], whose[1][is_less]]
    most = max(int(np.unique(each, return_counts=True)[1].max(initial=1)) for each in owners)
    is_sure = _surely_enough(more, fewer, smallest_cell, most, is_code) | np.outer(is_code, is_code)
    is_sure |= is_count | is_count[:, None]  # which of a patient's rows is the first is no value
    for some in (*([place] for place in range(len(names))), *np.argwhere(np.triu(~is_sure, 1)).tolist()):
        if too_few and len(some) > 1:
            break  # no pair could change the decision, and time would tell which hospital refuses
        sides = (new, old, whose) if is_count[some[0]] else (more, fewer, owners)
        if not _are_enough(sides[0][:, some], sides[1][:, some], sides[2], smallest_cell, is_code[some]):
            too_few.append(" with ".join(names[place] for place in some))
    moved = [of[side[:, ~is_count].any(axis=1)] for side, of in zip((more, fewer), owners, strict=True)]
    number = len(np.union1d(*moved)) if _PATIENTS in now else max(map(len, moved))
    if not too_few and 0 < number < smallest_cell:
        too_few = names  # values that few patients exchanged, or whose patient is another
    (places, further), gained = _gains(more[:, ~is_count], fewer[:, ~is_count])
    both = np.stack([places, gained[places]], axis=1), np.stack([further, -gained[further]], axis=1)
    gaining = ((gains[gains[:, 1] > 0], of[gains[:, 1] > 0]) for gains, of in zip(both, owners, strict=True))
    patients = max(int(_fewest(np.zeros(len(of), np.int64), gains, of)[0][0]) for gains, of in gaining)
    return Compared(run=run, patients=patients, too_few=tuple(too_few))


def _surely_enough(new: Digests, old: Digests, smallest_cell: int, most: int, is_code: Bools) -> Bools:
    """Return for which pairs of columns counts alone show that enough rows, or none, changed: (columns, columns).

    Rows with a pair of values that the other table has in fewer rows have changed. A patient has at most `most` rows.
    If patients have several, or values share a code, any four codes of a column may have the usual values.
    """
    sure = np.asarray(new.T @ new == old.T @ old)  # digests are random, and 0 if missing: equal pairs of values
    rough = np.concatenate([np.zeros((1, len(is_code)), np.uint64), _rough(new), _rough(old)])
    codes = np.stack([np.unique(one * (one % np.uint64(2)), return_inverse=True)[1][1:] for one in rough.T])
    shares, width = (codes.max(axis=1, initial=0) > _MOST_CODES) | (most > 1), _MOST_CODES + 1
    codes = np.where(codes > 0, 1 + (codes - 1) % _MOST_CODES, 0)
    for k, own in enumerate(codes):
        pairs = (np.arange(len(codes) - k)[:, None] * width + own) * width + codes[k:]
        parts = (np.bincount(one.ravel(), minlength=len(pairs) * width**2) for one in np.split(pairs, [len(new)], 1))
        gained = np.subtract(*parts).reshape(-1, width, width)[:, 1:, 1:]
        for changed in (np.maximum(gained, 0), np.maximum(-gained, 0)):
            usual = [_usual(changed.sum(axis=axis)) for axis in (2, 1)]
            usual = [usual[0] & ~is_code[k], usual[1] & ~is_code[k:, None]]
            beside = changed.sum(axis=(1, 2), where=~(usual[0][:, :, None] | usual[1][:, None, :]))
            total, ordered = changed.sum(axis=(1, 2)), [np.sort(changed.sum(axis=axis)) for axis in (2, 1)]
            most_usual = sum(one[:, -_MOST_USUAL:].sum(axis=1) for one in ordered)
            is_known = ~(shares[k] | shares[k:])
            are_many = np.where(is_known, beside, total - most_usual) >= most * smallest_cell
            are_many |= is_known & ((beside == 0) | (3 * beside > total))
            sure[k, k:] |= are_many & (total >= most * smallest_cell)
    return sure


def _usual(counts: Integers) -> Bools:
    """Return which codes several of the changed rows have, and no four others are commoner: (pairs, codes)."""
    ranks = np.argsort(np.argsort(-counts, axis=1, kind="stable"), axis=1)
    return np.asarray((ranks < _MOST_USUAL) & (counts > 1))


def _rough(digests: Digests, shift: int = _ROUNDED) -> Digests:
    """Return digests of values rounded to three digits, or cut off after them."""
    return digests >> np.uint64(shift) << np.uint64(48) >> np.uint64(47) | digests & np.uint64(1)


def _are_enough(new: Digests, old: Digests, owners: Sequence[Digests], smallest_cell: int, is_code: Bools) -> bool:
    """Return whether no row changed, or rows of enough patients, without missing values. Shapes (rows, columns).

    The commonest changed values hide no others if two thirds of the rows have them. Sums and squares show how many do.
    """
    is_new, is_old = ((each != 0).all(axis=1) for each in (new, old))
    new, old, whose = new[is_new], old[is_old], [owners[0][is_new], owners[1][is_old]]
    kinds, gained = _gains(new, old)
    some = [gained[each] != 0 for each in kinds]  # what both have as often changes no other difference
    new, old, whose = new[some[0]], old[some[1]], [of[each] for of, each in zip(whose, some, strict=True)]
    hidden = not len(new) + len(old)
    for mine, others, of, of_others in ((new, old, *whose), (old, new, *reversed(whose))):
        rough = _rough(mine), _rough(others)
        hides = _changed(mine, others, of, of_others) & (mine % np.uint64(2) == 1).all(axis=1)
        hides &= _changed(*rough, of, of_others)
        if len(is_code) == 1:  # a tiny change can move a value over a border of rounding, and not also of cutting off
            hides &= _changed(_rough(mine, _CUT_OFF), _rough(others, _CUT_OFF), of, of_others)
        (places, _), more = _gains(*rough)
        of, gains = of[hides], np.stack([places, more[places]], axis=1)[hides]
        is_beside = ~_is_usual(rough[0][hides][:, ~is_code], gains, of)
        alone = np.zeros(len(of), np.int64)
        patients, total = (int(each[0]) for each in _fewest(alone, gains, of))
        beside = int(_fewest(alone[is_beside], gains[is_beside], of[is_beside])[0][0])
        are_few = 0 < beside < smallest_cell and 3 * beside <= min(len(np.unique(of)), total)
        hidden = hidden or (patients >= smallest_cell and not are_few)
    return hidden


def _is_usual(rows: Digests, gains: Integers, of: Digests) -> Bools:
    """Return which rows have in a column one of its four commonest values that several patients must have: (rows,)."""
    found = np.zeros(len(rows), np.bool_)
    for column in rows.T:
        places = np.unique(column, return_inverse=True)[1].reshape(-1)
        fewest = _fewest(places, gains, of)[0]
        usual = np.argsort(-fewest, kind="stable")[:_MOST_USUAL]
        found |= np.isin(places, usual[fewest[usual] > 1])
    return found


def _fewest(places: Integers, gains: Integers, of: Digests) -> tuple[Integers, Integers]:
    """Return how many patients `of` the rows of each place can at least have what its kinds gained, and how many rows.

    `gains`, (rows, 2), has the kind of each row and how many more rows of this kind there are.
    """
    size, who = int(places.max(initial=0)) + 1, np.unique(of, return_inverse=True)[1].reshape(-1)
    _, first, kinds, counts = np.unique(gains[:, 0], return_index=True, return_inverse=True, return_counts=True)
    gained = np.minimum(counts, gains[first, 1])
    totals = np.bincount(places[first], gained, minlength=size).astype(np.int64)
    people = len(who) + 1
    _, at, counts = np.unique(kinds.reshape(-1) * people + who, return_index=True, return_counts=True)
    keys, whose = np.unique(places[at] * people + who[at], return_inverse=True)
    most = np.bincount(whose.reshape(-1), np.minimum(counts, gained[kinds.reshape(-1)[at]]), minlength=len(keys))
    order = np.lexsort((-most, keys // people))  # those of each place who can have most come first
    place, running = (keys // people)[order], np.cumsum(most[order])
    before = np.append(0.0, running)[np.searchsorted(place, place)]
    are_too_few = running - before < totals[place]
    return np.bincount(place, are_too_few, minlength=size).astype(np.int64) + (totals > 0), totals


def _changed(rows: Digests, others: Digests, of: Digests, of_others: Digests) -> Bools:
    """Return which rows can be among those that there are more of than among the others: (rows,).

    They are new for their patients. If patients have other identifiers, all equal rows can be, so nobody hides behind
    equal rows of others.
    """
    kinds, gained = _gains(rows, others)
    mine, theirs = (gained[each] > 0 for each in kinds)
    them = np.column_stack([rows[mine], of[mine]]), np.column_stack([others[theirs], of_others[theirs]])
    mine[mine] = _beyond(*them)
    return np.asarray(mine)


def _beyond(rows: Digests, others: Digests) -> Bools:
    """Return which rows are not among the others, where each of the others stands for one row: (rows,)."""
    mine, theirs = _kinds(rows, others)
    order, place = np.argsort(mine, kind="stable"), np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows)) - np.searchsorted(mine[order], mine[order])  # of each among its equals
    return np.asarray(place >= np.bincount(theirs, minlength=len(rows) + len(others))[mine])


def _gains(rows: Digests, others: Digests) -> tuple[tuple[Integers, Integers], Integers]:
    """Return the kind of each row and of the others, and for each kind how many more rows of it there are."""
    kinds = _kinds(rows, others)
    one, other = (np.bincount(some, minlength=len(rows) + len(others)) for some in kinds)
    return kinds, one - other


def _kinds(rows: Digests, others: Digests) -> tuple[Integers, Integers]:
    # Digests are random, so two different rows have the same weighted sum with a probability of 2**-64.
    weights = np.array([2 * int(place) ** 2 + 0x9E3779B97F4A7C15 for place in range(rows.shape[1])], np.uint64)
    kinds = np.unique(np.concatenate([rows @ weights, others @ weights]), return_inverse=True)[1].reshape(-1)
    return kinds[: len(rows)], kinds[len(rows) :]
