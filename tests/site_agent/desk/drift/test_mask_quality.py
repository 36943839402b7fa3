"""Monitoring of a model that draws masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from site_agent.desk.drift.monitor_command import monitor_lines
from site_agent.desk.drift.monitoring import monitor_table
from tests.mask_images import put_table
from tests.site_agent.trainer.after_a_run import site_with_masks


def test_monitoring_compares_the_dice_of_new_masks_with_that_of_the_test(tmp_path: Path) -> None:
    """With the drawn masks it is about that of the test, with those of others worse, and without masks none."""
    hospital = site_with_masks(tmp_path / "site")
    new_rows = tmp_path / "new.csv"
    put_table(new_rows, tmp_path, list(range(1000, 1040)))
    text = new_rows.read_text().splitlines()
    cells = [line.split(",") for line in text[1:]]
    turned = [",".join([*one[:2], other[2]]) for one, other in zip(cells, cells[1:] + cells[:1], strict=True)]

    right: dict[str, Any] = monitor_table(hospital, new_rows, None)
    new_rows.write_text("\n".join([text[0], *turned]) + "\n")
    wrong: dict[str, Any] = monitor_table(hospital, new_rows, None)
    new_rows.write_text("\n".join(line.rpartition(",")[0] for line in text) + "\n")
    unknown: dict[str, Any] = monitor_table(hospital, new_rows, None)

    assert right["quality"]["metrics"]["dice"] > 0.8
    assert right["quality"]["is_worse"] == {"dice": False}
    assert wrong["quality"]["is_worse"] == {"dice": True}
    assert any("worse on the new rows than on the test rows. dice is" in warning for warning in wrong["warnings"])
    assert wrong["quality"]["means"] == {}
    assert unknown["quality"] is None
    assert any(line.startswith("dice ") for line in monitor_lines(wrong))
