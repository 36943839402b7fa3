"""What the doctor reports of a graphics card: none is used, whether one is there or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_agent.desk import trainer_doctor


@pytest.mark.parametrize("device", [None, "/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128"])
def test_the_doctor_reports_that_no_graphics_card_is_used(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of any maker is found by its device, and it is no fault to have one or none."""
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == device)

    found = trainer_doctor._graphics()

    assert (found.identifier, found.severity.name) == ("D423", "FINE")
    assert ("this version does not use it" in found.line) is (device is not None)
    assert ("None is there" in found.line) is (device is None)
