"""Records chained by hash: every change of a log is detected, with its line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.wire.log_chain import GENESIS, BrokenChain, LogHead, append, checked
from tests.for_each import for_each

RECORDS = 8


def log(records: int = RECORDS, name: str = "hospital") -> tuple[list[bytes], list[LogHead]]:
    """A log's lines, and the checkpoints before, between and after them."""
    checkpoints, lines = [LogHead()], []
    for number in range(records):
        facts = {"event": "contribution_released", "site": name, "round": number, "tensors": ["ä", "b"], "share": 0.25}
        position, line = append(checkpoints[-1], facts, bytes([number]) * 16)
        checkpoints.append(position)
        lines.append(line)
    return lines, checkpoints


LINES, HEADS = log()


def verify(lines: list[bytes], position: LogHead | None = None) -> LogHead:
    """The position after all these lines, each checked."""
    reached = position or LogHead()
    for record in checked(lines, reached):
        reached = record.head
    return reached


def _broken_at(lines: list[bytes], position: LogHead | None = None) -> int:
    with pytest.raises(BrokenChain) as finding:
        verify(lines, position)
    assert str(finding.value).startswith(f"line {finding.value.line}: ")
    return finding.value.line


@for_each("records", range(6))
def test_an_honest_log_leads_to_its_head(records: int) -> None:
    """A log that nobody touched verifies, from the beginning and from every checkpoint on the way."""
    lines, checkpoints = log(records)

    assert verify(lines) == checkpoints[-1]
    assert all(verify(lines[start:], checkpoints[start]) == checkpoints[-1] for start in range(records + 1))
    assert checkpoints[0] == LogHead(0, GENESIS)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values) | st.tuples(values, values) | st.dictionaries(st.text(), values),
    max_leaves=10,
)


@settings(max_examples=60)
@given(facts=st.dictionaries(st.text(), JSON_VALUES))
def test_what_a_reader_decodes_has_the_hash_that_was_written(facts: dict[str, Any]) -> None:
    """Facts of any JSON values are read as JSON represents them, and their line verifies."""
    position, line = append(LogHead(), facts, bytes(16))

    (record,) = checked([line])
    assert record.head == position
    assert record.facts == json.loads(json.dumps(facts))


@pytest.mark.parametrize("facts", [{2: "b", 10: "a"}, {"of": {2: 1, 10: 2}}, {"of": [("a", {None: 1})]}])
def test_a_key_that_is_no_text_is_not_written(facts: dict[Any, Any]) -> None:
    """A reader would sort such keys differently, and would take an honest line for a changed one."""
    with pytest.raises(TypeError, match="keys of facts are text"):
        append(LogHead(), facts, bytes(16))


@settings(max_examples=500)
@given(line=st.integers(0, RECORDS - 1), data=st.data())
def test_a_flipped_bit_is_found_in_its_line(line: int, data: st.DataObject) -> None:
    """Any single flipped bit, in any line, is found in that line."""
    changed = bytearray(LINES[line])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    assert _broken_at([*LINES[:line], bytes(changed), *LINES[line + 1 :]]) == line + 1


@for_each("line", range(RECORDS - 1))
def test_a_deleted_record_is_found_where_it_is_missing(line: int) -> None:
    """Without one of its records the log breaks at the next."""
    assert _broken_at([*LINES[:line], *LINES[line + 1 :]]) == line + 1


@for_each("line", range(RECORDS - 1))
def test_swapped_records_are_found(line: int) -> None:
    """Two neighbours that changed places break the log at the first of them."""
    swapped = [*LINES[:line], LINES[line + 1], LINES[line], *LINES[line + 2 :]]

    assert _broken_at(swapped) == line + 1


@for_each("kept", range(RECORDS))
def test_a_cut_tail_shows_against_a_kept_checkpoint(kept: int) -> None:
    """A shorter log is well formed but does not reach the checkpoint that someone else kept."""
    reached = verify(LINES[:kept])

    assert reached == HEADS[kept] != HEADS[-1]


@for_each("from_line", range(RECORDS))
def test_a_recomputed_chain_does_not_reach_a_kept_checkpoint(from_line: int) -> None:
    """A log rewritten with right hashes from some record on verifies alone, but not against kept checkpoints."""
    position, forged = HEADS[from_line], list(LINES[:from_line])
    for number in range(from_line, RECORDS):
        position, line = append(position, {"event": "nothing_happened", "round": number}, bytes(16))
        forged.append(line)

    assert verify(forged) != HEADS[-1]
    assert all(_broken_at(forged[kept:], HEADS[kept]) == 1 for kept in range(from_line + 1, RECORDS))


@pytest.mark.parametrize(
    "edit",
    [
        lambda record: record | {"note": "approved by Dr. Smith"},
        lambda record: record | {"facts": record["facts"] | {"tensors": []}},
        lambda record: record | {"sequence": True}, lambda record: record | {"sequence": 1.0},
        lambda record: record | {"salt": 7}, lambda record: record | {"salt": 2**70},
        lambda record: record | {"salt": None}, lambda record: record | {"salt": "not hexadecimal"},
        lambda record: record | {"previous": None}, lambda record: record | {"hash": None},
        lambda record: record | {"hash": record["hash"].upper()},
        lambda record: {key: value for key, value in record.items() if key != "salt"}, lambda record: [record],
        lambda record: record["facts"], lambda record: None,
    ],
)  # fmt: skip
def test_an_edited_record_is_found(edit: Any) -> None:
    """A field added beside the hashed ones, another type or a missing field is found in its line."""
    edited = json.dumps(edit(json.loads(LINES[1])), sort_keys=True, separators=(",", ":")).encode() + b"\n"

    assert _broken_at([LINES[0], edited, *LINES[2:]]) == 2


@pytest.mark.parametrize(
    "edited",
    [
        LINES[1].replace(b'{"facts":', b'{"facts":{"event":"shown first"},"facts":'),
        LINES[1].replace(b":", b": ", 1), LINES[1].replace(b"\\u00e4", "ä".encode()), b" " + LINES[1],
        LINES[1].replace(b"\n", b"\r\n"), b"\n", b"[" * 100_000 + b"\n", b"\xff\n", b"9" * 5000 + b"\n",
    ],
)  # fmt: skip
def test_another_spelling_of_a_record_is_found(edited: bytes) -> None:
    """The bytes are what was written: a key given twice, spaces or other escapes are a change."""
    assert _broken_at([LINES[0], edited, *LINES[2:]]) == 2


def test_the_salt_keeps_a_hash_from_confirming_a_guess() -> None:
    """Equal facts with another salt have another hash."""
    facts = {"event": "run_joined"}

    assert append(LogHead(), facts, b"a" * 16)[0] != append(LogHead(), facts, b"b" * 16)[0]
