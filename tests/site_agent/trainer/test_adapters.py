"""The example of a frozen transformer: adapters alone are shared, from a plan that the example itself prints."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml
from safetensors.numpy import load_file

from host.starting_files import starting_values
from protos.plan.manifest import manifest_of
from tests.site_agent.trainer.test_user_modules_by_parts import federation_of, plan_for, written

EXAMPLE = Path(__file__).parents[3] / "deploy" / "examples" / "adapters.py"


def test_adapters_alone_are_trained_together(tmp_path: Path) -> None:
    """The transformer keeps its published values, adapters become equal everywhere, and entry and exit stay private."""
    made = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    listed, start = map(yaml.safe_load, made.split("start: "))
    shutil.move(tmp_path / "frozen.safetensors", tmp_path / f"{start['sha256']}.safetensors")
    published = load_file(tmp_path / f"{start['sha256']}.safetensors")
    plan = plan_for({"name": "fedavg"}, {"name": "named-tensors", "tensors": listed}, start=start)
    federation = federation_of(plan, written(tmp_path, EXAMPLE.read_text()), starts=starting_values(tmp_path, plan))
    first = federation.own("ahus")

    for number in range(plan.rounds):
        federation.round(number)
    federation.finish()

    shared = {tensor.name for tensor in manifest_of(plan).tensors}
    one, other = (federation.own(site) for site in federation.studies)
    assert shared == {name for name in one if name.endswith((".down", ".up"))}
    assert 5 * manifest_of(plan).parameters < sum(values.size for values in published.values())
    for name in one:
        assert np.array_equal(one[name], other[name]) == (name in shared or name in published), name
        assert np.array_equal(one[name], first[name]) == (name in published), name
