"""The doctor's report on the device that trains networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from site_agent.desk import trainer_doctor
from site_agent.hospital import Training
from site_agent.trainer.failures import unfit
from site_agent.trainer.models import attention


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


def test_compiled_attention_is_named_and_a_missing_package_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """With attention: compiled the doctor checks for the package that training will use."""
    settings: list[str] = []
    monkeypatch.setattr(attention, "choose_attention", settings.append)
    found = trainer_doctor._device(Training(attention="compiled"))

    def refuse(kind: str) -> None:
        raise unfit(what=f"No package for {kind}.", remedy="Install it.")

    monkeypatch.setattr(attention, "choose_attention", refuse)
    missing = trainer_doctor._device(Training(attention="compiled"))

    assert settings[0] == "compiled"
    assert (found.severity.name, "with attention: compiled" in found.line) == ("FINE", True)
    assert (missing.severity.name, "No package for compiled. Install it." in missing.line) == ("FAILURE", True)


def test_the_code_for_attention_is_compiled_once_and_an_error_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator learns before a study that LLVM does not work here, or that its code computes wrong numbers."""
    pytest.importorskip("llvmlite")
    from site_agent.trainer.models import compiled_attention

    def broken(width: int) -> None:
        raise RuntimeError(f"no target for heads of {width} channels")

    compiled_attention._compiled.cache_clear()
    found = trainer_doctor._device(Training(attention="compiled"))
    compilations = compiled_attention._compiled.cache_info().misses
    with monkeypatch.context() as patch:
        patch.setattr(compiled_attention, "_compiled", broken)
        refused = trainer_doctor._device(Training(attention="compiled"))
    monkeypatch.setattr(compiled_attention, "attend", lambda projections, _: (torch.zeros(2, 2, 2), None))
    wrong = trainer_doctor._device(Training(attention="compiled"))
    attention.choose_attention("torch")

    assert (found.severity.name, compilations, "This process compiled the code" in found.line) == ("FINE", 1, True)
    assert (refused.severity.name, wrong.severity.name) == ("FAILURE", "FAILURE")
    assert "attention: compiled cannot be compiled on this computer" in refused.line
    assert "no target for heads of 2 channels" in capsys.readouterr().err
