"""Attacks that still succeed, and the pages that report them. If a fix makes one of these tests fail, move it to the
wall."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.attacks_on_patients import imprint_in_a_later_round

THREATS = Path(__file__).parents[2] / "docs/threat-model.md"


def test_a_layer_imprinted_in_a_later_round_gives_rows_away() -> None:
    """A site cannot check a later result, so an imprinted layer reads rows; the threat model names this test."""
    assert imprint_in_a_later_round()
    assert "test_known_limits.py" in THREATS.read_text().split("## Not defended")[1]
