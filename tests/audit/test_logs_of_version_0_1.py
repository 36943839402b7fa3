"""A log of version 0.1 verifies unchanged, and its records have the names of this version."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

from audit.checkpoint_memory import kept_checkpoints
from audit.reading.log_commands import Desk
from audit.reading.log_verification import KnownKeys, facts_in

# Written by version 0.1: four records, a checkpoint that its witness cosigned, two records, another such checkpoint.
WRITTEN = Path(__file__).with_name("version-0.1")
SITE = "site/berlin"


def test_it_verifies_with_the_public_keys(tmp_path: Path) -> None:
    """Chain, checkpoints and cosignatures are valid, and a changed digit in any record is detected."""
    copytree(WRITTEN, tmp_path / "log")
    path, keys = tmp_path / "log" / "audit.log", json.loads((WRITTEN / "keys.json").read_text())
    known = KnownKeys({owner: bytes.fromhex(key) for owner, key in keys.items()})

    found = Desk(path, SITE, known).verification()

    assert found.cosigned > 4
    assert found.unchecked == ()


def test_its_records_have_the_present_names() -> None:
    """The display of records does not depend on the version that wrote them."""
    facts = [each for _, each in facts_in(WRITTEN / "audit.log")]

    assert [each["event"] for each in facts].count("checkpoint_cosigned") == 2
    cosigned = next(each for each in facts if each["event"] == "checkpoint_cosigned")
    assert {"checkpoint", "cosignature"} <= cosigned.keys()
    assert next(each for each in facts if each["event"] == "key_session_agreed")["key_session"] == 1


def test_a_witness_still_has_what_it_kept() -> None:
    """The checkpoint that a witness of version 0.1 stored can be read, so a rollback is still detected."""
    (kept,) = kept_checkpoints(WRITTEN / "witness")

    assert (kept.owner, kept.generation) == (SITE, 1)
