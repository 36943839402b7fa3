"""The doctor's report on the device that trains networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from site_agent.desk import trainer_doctor
from site_agent.hospital import Training


@pytest.mark.parametrize("device", [None, "/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128"])
def test_the_processor_is_named_and_an_unused_card_too(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of any maker is found by its device, and it is no fault to have one or none."""
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == device)

    found = trainer_doctor._device(Training())

    assert (found.identifier, found.severity.name) == ("D423", "FINE")
    assert "on the processor (device: cpu)" in found.line
    assert ("has a graphics card, which is not used" in found.line) is (device is not None)


def test_a_card_in_use_is_named_and_a_missing_one_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """With device: cuda the doctor checks for the device that training will use."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    missing = trainer_doctor._device(Training(device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some Card 100")
    found = trainer_doctor._device(Training(device="cuda"))

    assert (missing.identifier, missing.severity.name) == ("D423", "FAILURE")
    assert "hospital.yaml sets device: cuda" in missing.line
    assert (found.severity.name, "Some Card 100" in found.line) == ("FINE", True)
