"""A device beside the processor, without such a device: every step of every method, and the check before a run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.laws import pretended_card
from tests.laws.catalogue import NAMES
from tests.protos.architectures import KINDS
from tests.site_agent.trainer.sites import make_site


@pytest.mark.slow
def test_no_step_of_a_method_and_no_network_mixes_devices() -> None:
    """A pretended device refuses tensors of two devices; rows that were left on the processor show that it does."""
    command = [sys.executable, "-m", pretended_card.__name__]

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)

    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert re.search("two (different )?devices", found.pop(pretended_card.MIXED))  # releases of torch differ
    assert found == dict.fromkeys((*NAMES, *KINDS), "ok")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch finds a graphics card here")
def test_the_check_before_a_run_stops_where_no_card_is(tmp_path: Path) -> None:
    """In a process of its own, as the trainer checks; the table is not even read."""
    config = make_site(tmp_path, device="cuda")
    (tmp_path / "table.csv").unlink()
    script = "import sys; from pathlib import Path; from site_agent.hospital import read_hospital; "
    script += "from site_agent.trainer.before_rounds import check_table; check_table(read_hospital(Path(sys.argv[1])))"

    done = subprocess.run([sys.executable, "-c", script, str(config)], capture_output=True, text=True, timeout=120)

    assert "hospital.yaml sets device: cuda under training, but" in done.stderr
    assert "Nothing was trained and nothing was sent." in done.stderr
