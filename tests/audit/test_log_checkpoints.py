"""Signed checkpoints and their witnesses: a witness never cosigns a log that differs from an earlier checkpoint."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit import checkpoint_memory
from audit.cosigning import LogSession
from audit.log_files import set_aside
from audit.own_log import AuditError
from audit.reading.log_commands import Desk, lines
from audit.reading.log_keys import checkpoints_text, keys_text
from audit.reading.log_verification import KnownKeys
from protos.wire.log_chain import LogPosition, append
from protos.wire.log_checkpoints import (
    COORDINATOR,
    CheckpointRefused,
    check_checkpoint,
    check_cosignature,
    checkpoint_facts,
    checkpoint_from_facts,
    cosign,
    sign_checkpoint,
)
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_messages import LogGrowth, LogStanding
from tests.audit.audit_sides import KEYS, NOW, PUBLIC, SITE, TIME, Side, desk, meet


def test_each_witnesses_the_other_and_the_cosignature_stands_in_the_log(sides: tuple[Side, Side]) -> None:
    """After a meeting, public keys alone verify both logs, and all earlier records are cosigned."""
    for side, witness in (sides, sides[::-1]):
        found = desk(side).verification()

        assert found.witnesses == (witness.owner,)
        assert found.cosigned >= 5
        assert found.unchecked == ()
        assert checkpoint_memory.kept_checkpoint(witness.party.folder, side.owner) == checkpoint_memory.own_checkpoint(
            side.party.folder
        )


def test_a_key_that_comes_back_is_held_to_what_was_confirmed_under_it(sides: tuple[Side, Side]) -> None:
    """A site with a new identity key starts a new log; each key keeps its own last checkpoint."""
    witness, other = sides[1].party, bytes(32)
    confirmed = witness.kept_of(SITE, PUBLIC[SITE])
    assert confirmed is not None

    assert witness.kept_of(SITE, other) is None
    found = [witness.kept_of(SITE, PUBLIC[SITE]) for _ in range(2)]

    assert found == [confirmed, confirmed]


def test_a_former_key_counts_only_where_its_replacement_is_on_record(sides: tuple[Side, Side]) -> None:
    """A witness's signature from before its key was replaced breaks no log, but does not count as checked."""
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    reader = Desk(sides[1].path, COORDINATOR, KnownKeys({**PUBLIC, SITE: other}))
    with pytest.raises(AuditError, match="cosigned by another witness"):
        reader.verification()

    sides[1].party.kept_of(SITE, other)
    found = reader.verification()
    meet(*sides)  # the former key signs once more

    assert (found.unchecked, found.witnesses, found.cosigned) == ((f"{SITE} under its former key",), (), 0)
    with pytest.raises(AuditError, match="cosigned by another witness"):
        reader.verification()


def test_two_logs_that_witness_each_other_come_to_rest(sides: tuple[Side, Side]) -> None:
    """Records about checkpoints require no further checkpoint."""
    sizes = [side.log.position.sequence for side in sides]

    meet(*sides)

    assert [side.log.position.sequence for side in sides] == sizes


@pytest.mark.parametrize(("meanwhile", "follows"), [(20, 0), (63, 0), (64, 1)])
def test_only_a_log_far_ahead_is_shown_again_immediately(
    sides: tuple[Side, Side], meanwhile: int, follows: int
) -> None:
    """Records that arrive during a checkpoint wait for the next pulse, unless the witness is far behind."""
    owner, witness = sides
    owning = LogSession(owner.party, witness.owner, PUBLIC[witness.owner])
    witnessing = LogSession(witness.party, owner.owner, PUBLIC[owner.owner])
    owning.heard(witnessing.standing())
    owner.work(20)
    witnessing.heard(owning.standing())
    (shown,) = owning.due(1)
    owner.work(meanwhile)
    (cosigned,) = witnessing.heard(shown)

    assert len(owning.heard(cosigned)) == follows
    assert len(owning.due()) == 1 - follows


def test_a_payment_from_the_privacy_budget_is_confirmed_at_once(sides: tuple[Side, Side]) -> None:
    """Otherwise a backup from before the payment would seem complete, and the site would spend this budget again."""
    owner, witness = sides
    owning = LogSession(owner.party, witness.owner, PUBLIC[witness.owner])
    witnessing = LogSession(witness.party, owner.owner, PUBLIC[owner.owner])
    owning.heard(witnessing.standing())
    witnessing.heard(owning.standing())
    owner.work(18)
    assert owning.due() == []
    owner.write("privacy_spent", epsilon=1.0)
    (shown,) = owning.due()
    owner.write("privacy_spent", epsilon=1.0)
    (cosigned,) = witnessing.heard(shown)

    (grown,) = owning.heard(cosigned)  # which covers the second payment
    (cosigned,) = witnessing.heard(grown)

    assert owning.heard(cosigned) == []
    owner.work(19)
    assert owning.due() == []


def test_a_witness_asks_once_on_a_stream_where_the_log_continues(sides: tuple[Side, Side]) -> None:
    """Each such request may require the whole log, so the second one ends the stream."""
    owner, witness = sides
    owning = LogSession(owner.party, witness.owner, PUBLIC[witness.owner])
    forgetful = LogStanding(PUBLIC[witness.owner], None)
    (shown,) = owning.heard(forgetful)

    assert isinstance(shown, LogGrowth)
    assert shown.start == 0
    with pytest.raises(MalformedMessage, match="twice"):
        owning.heard(forgetful)


def test_the_witness_reads_nothing_of_the_log(sides: tuple[Side, Side]) -> None:
    """A site's message contains none of the log's facts, in any spelling."""
    site, coordinator = sides
    site.write("contribution_released", secret="canary-of-berlin")
    session = LogSession(site.party, COORDINATOR, PUBLIC[COORDINATOR])
    standing = LogSession(coordinator.party, SITE, PUBLIC[SITE]).standing()

    (grown,) = session.heard(standing)

    assert isinstance(grown, LogGrowth)
    shown = b"".join(grown.leaves) + json.dumps(checkpoint_facts(grown.checkpoint)).encode()
    assert b"canary" not in shown
    assert len(grown.leaves) == 3  # of which two are about checkpoints


def rolled_back(site: Side, folder: Path) -> Side:
    """The earlier state of the site, restored from a backup."""
    shutil.copytree(site.path.parent, folder / "backup")
    site.work()
    return Side(folder / "backup", SITE)


def test_a_rollback_is_refused_by_the_owner_that_is_shown_its_own_signature(
    sides: tuple[Side, Side], tmp_path: Path
) -> None:
    """A log that is older than its own signed checkpoint stops its own side, with an explanation."""
    old = rolled_back(sides[0], tmp_path)
    meet(*sides)

    with pytest.raises(CheckpointRefused, match="differs from its signed checkpoint"):
        meet(old, sides[1])
    old.log.close()


def growth_of(side: Side, start: int = 0) -> LogGrowth:
    """The message of a side that hides something: from a chosen start, with a valid signature."""
    leaves = tuple(side.log.leaves(start, 1000))
    return LogGrowth(side.party.signed(side.log.position), start, leaves)


def test_a_fork_is_refused_by_the_witness(sides: tuple[Side, Side], tmp_path: Path) -> None:
    """Two continuations of one log: the witness cosigns the first that it sees, and refuses the other for good."""
    site, coordinator = sides
    shutil.copytree(site.path.parent, tmp_path / "fork")
    fork = Side(tmp_path / "fork", SITE)
    start = checkpoint_memory.kept_checkpoint(coordinator.party.folder, SITE)
    assert start is not None
    site.work(3)
    fork.work(7)
    meet(site, coordinator)

    for grown in (growth_of(fork, start.size), growth_of(fork), growth_of(fork, start.size + 3)):
        with pytest.raises(CheckpointRefused):
            coordinator.party.witness(grown, SITE, PUBLIC[SITE])

    refused = list(coordinator.log.records("log_refused"))
    assert [facts["owner"] for facts in refused] == [SITE] * 3
    fork.log.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda grown: replace(grown, leaves=grown.leaves[:-1]),
        lambda grown: replace(grown, leaves=(*grown.leaves[1:], grown.leaves[0])),
        lambda grown: replace(grown, leaves=(*grown.leaves, bytes(32))),
        lambda grown: replace(grown, start=grown.start - 1),
        lambda grown: replace(grown, checkpoint=replace(grown.checkpoint, size=grown.checkpoint.size + 1)),
        lambda grown: replace(grown, checkpoint=replace(grown.checkpoint, hash="0" * 64)),
        lambda grown: replace(grown, checkpoint=replace(grown.checkpoint, signature=bytes(64))),
        lambda grown: replace(grown, checkpoint=replace(grown.checkpoint, owner="site/lyon")),
        lambda grown: replace(grown, checkpoint=replace(grown.checkpoint, key=PUBLIC[COORDINATOR])),
        lambda grown: replace(grown, checkpoint=replace(grown.checkpoint, time="2030-01-01")),
        lambda grown: replace(grown, checkpoint=replace(grown.checkpoint, generation=2)),
    ],
)
def test_a_growth_that_was_changed_is_not_cosigned(
    sides: tuple[Side, Side], change: Callable[[LogGrowth], LogGrowth]
) -> None:
    """Missing, moved or invented leaves, another checkpoint, and another signer are each refused and recorded."""
    site, coordinator = sides
    start = checkpoint_memory.kept_checkpoint(coordinator.party.folder, SITE)
    assert start is not None
    site.work()
    honest = growth_of(site, start.size)

    with pytest.raises(CheckpointRefused):
        coordinator.party.witness(change(honest), SITE, PUBLIC[SITE])

    assert list(coordinator.log.records("log_refused"))
    coordinator.party.witness(honest, SITE, PUBLIC[SITE])


def test_a_witness_that_has_forgotten_is_shown_everything_again(sides: tuple[Side, Side]) -> None:
    """A coordinator that lost its checkpoints links the whole log again."""
    site, coordinator = sides
    shutil.rmtree(coordinator.party.folder)

    meet(site, coordinator)

    kept = checkpoint_memory.kept_checkpoint(coordinator.party.folder, SITE)
    assert kept is not None
    assert site.log.position_at(kept.size) == kept.position


def test_a_log_that_a_person_restarted_is_cosigned_in_its_next_generation(sides: tuple[Side, Side]) -> None:
    """After a loss the next log has a higher generation, and the old files stay beside it."""
    site, coordinator = sides
    site.log.close()
    generation = set_aside(site.path, NOW)
    restarted = Side(site.path.parent, SITE)
    restarted.write("log_began_anew", generation=generation, by="A. Jones", reason="disk failed")
    restarted.work()
    meet(restarted, coordinator)

    found = desk(restarted).verification()
    assert (found.generation, found.cosigned) == (2, 6)
    assert len(list(site.path.parent.glob("audit.log.before-*"))) == 1
    with pytest.raises(CheckpointRefused, match="rolled back"):
        coordinator.party.witness(
            LogGrowth(sign_checkpoint(SITE, 1, LogPosition(), TIME, KEYS[SITE]), 0, ()), SITE, PUBLIC[SITE]
        )
    site.log = restarted.log


# The results of a third party's check


def tampered(side: Side, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the lines of a log."""
    side.path.write_bytes(b"".join(change(side.path.read_bytes().splitlines(keepends=True))))


def recomputed(content: list[bytes], *, keeps: Callable[[dict[str, object]], bool]) -> list[bytes]:
    """A chain that was rewritten from its beginning by somebody without a key."""
    position, made = LogPosition(), []
    for line in content:
        facts = json.loads(line)["facts"]
        if keeps(facts):
            position, _, new = append(
                position, facts | ({"round": 99} if facts.get("round") == 2 else {}), os.urandom(16)
            )
            made.append(new)
    return made


FAULTS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "a flipped digit": (
        lambda found: [*found[:2], found[2].replace(b'"round":2', b'"round":3'), *found[3:]],
        "line 3: ",
    ),
    "a deletion": (lambda found: [*found[:2], *found[3:]], "line 3: .*removed"),
    "a swap": (lambda found: [found[0], found[2], found[1], *found[3:]], "line 2: "),
    "a torn line": (lambda found: [*found[:-1], found[-1][:-9]], "line [0-9]+: .*not a complete record"),
    "a cut tail": (lambda found: found[:3], "line 3: .*its tail was cut"),
    "a rewritten chain": (
        lambda found: recomputed(found, keeps=lambda facts: True),
        "line [0-9]+: the checkpoint that it names",
    ),
    "a rewritten chain without its checkpoints": (
        lambda found: recomputed(found, keeps=lambda facts: facts["event"] == "contribution_released") * 1,
        "was rewritten|tail was cut",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_third_party_finds_every_kind_of_tampering(sides: tuple[Side, Side], tmp_path: Path, fault: str) -> None:
    """Public keys and the witness's checkpoints alone find each fault, with its line."""
    site, coordinator = sides
    change, finding = FAULTS[fault]
    (tmp_path / "keys.json").write_text(keys_text(PUBLIC))
    (tmp_path / "checkpoints.json").write_text(
        checkpoints_text(checkpoint_memory.kept_checkpoints(coordinator.party.folder))
    )
    reader = Desk(site.path, SITE, KnownKeys()).given(tmp_path / "keys.json", tmp_path / "checkpoints.json")
    assert reader.verification().kept_checkpoints == 1

    tampered(site, change)

    with pytest.raises(AuditError, match=rf"audit\.log, .*({finding})"):
        reader.verification()


def test_another_owners_key_does_not_verify(sides: tuple[Side, Side]) -> None:
    """A log whose checkpoints another key has signed is not that owner's."""
    others = KnownKeys({**PUBLIC, SITE: PUBLIC[COORDINATOR]})

    with pytest.raises(AuditError, match="another key than the owner's"):
        Desk(sides[0].path, SITE, others).verification()


def test_without_keys_the_reader_is_told_what_was_not_checked(sides: tuple[Side, Side]) -> None:
    """Signatures by unknown keys do not count as checked."""
    told = list(lines(Desk(sides[0].path, SITE, KnownKeys()).verification()))

    assert any("Not compared with a known key" in line and "coordinator" in line for line in told)


def test_a_head_survives_its_facts_and_no_other_key_passes() -> None:
    """A signed checkpoint read back is the same, and each of its fields is signed."""
    signed = sign_checkpoint(SITE, 1, LogPosition(3, "ab" * 32), TIME, KEYS[SITE])
    given = cosign(signed, COORDINATOR, TIME, KEYS[COORDINATOR])

    assert checkpoint_from_facts(checkpoint_facts(signed)) == signed
    check_checkpoint(signed, SITE, PUBLIC[SITE])
    check_cosignature(signed, given, COORDINATOR, PUBLIC[COORDINATOR])
    for changed in (replace(signed, size=4), replace(signed, generation=2), replace(signed, time="later")):
        with pytest.raises(CheckpointRefused):
            check_checkpoint(changed, SITE, PUBLIC[SITE])
        with pytest.raises(CheckpointRefused):
            check_cosignature(changed, given, COORDINATOR, PUBLIC[COORDINATOR])
