"""The key that seals backups: created once, read aloud, and required before a restore."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from host.backup_key import NAME, keep_key, kept_key, key_for_restoring, made_key, sealing_key, typed_key
from protos.errors import ConfigurationError


def test_the_key_is_made_once_and_can_be_written_down(tmp_path: Path) -> None:
    """Two folders have two keys; what a person copies from the paper, spaced or in capitals, is the same key."""
    (tmp_path / "other").mkdir()
    words, other = made_key(tmp_path), made_key(tmp_path / "other")
    paper = tmp_path / "paper"
    paper.write_text(words.upper().replace("-", " ") + "\r\n")

    assert made_key(tmp_path) == kept_key(tmp_path) == typed_key(paper) == words
    assert words != other
    assert sealing_key(words) == sealing_key(typed_key(paper)) != sealing_key(other)
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "aaaa-bbbb", "0" * 32, "a" * 33, "ä" * 32])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    """Neither a changed file from the paper nor a changed file beside the state is used."""
    (tmp_path / "paper").write_text(text)
    keep_key(tmp_path, text)

    with pytest.raises(ConfigurationError, match="no backup key"):
        typed_key(tmp_path / "paper")
    with pytest.raises(ConfigurationError, match="no backup key"):
        kept_key(tmp_path)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """The file stays, and a person corrects it."""
    made_key(tmp_path)
    (tmp_path / NAME).chmod(0o644)

    with pytest.raises(ConfigurationError, match="Other user accounts"):
        kept_key(tmp_path)


def test_without_a_key_nothing_is_restored_unless_a_person_says_so(tmp_path: Path) -> None:
    """Without a key and a confirmation, the restore is refused.

    A key file has priority over the key beside the state.
    """
    with pytest.raises(ConfigurationError, match="nobody can tell who made"):
        key_for_restoring(tmp_path, None, unauthenticated=False)
    words = made_key(tmp_path)
    paper = tmp_path / "paper"
    paper.write_text("aaaa" * 8)

    assert key_for_restoring(tmp_path, None, unauthenticated=False) == words
    assert key_for_restoring(tmp_path, paper, unauthenticated=False) == "-".join(["aaaa"] * 8)
    assert key_for_restoring(tmp_path, None, unauthenticated=True) is None
