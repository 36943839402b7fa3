"""coordinator.yaml: paths are relative to the file, and every mistake is reported."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from time import monotonic as time

import pytest
import yaml

from coordinator.commands.configuration import read_configuration, read_plans
from coordinator.rounds.engine import Engine
from host.starting_files import starting_values
from protos.errors import ConfigurationError
from protos.plan.network_plan import FileStart
from tests.coordinator.in_memory import coordinator_log
from tests.host.starting import random_values, write_starting_file
from tests.protos.examples import plan_document
from tests.rehearsal.study import made_up_identities, plan_with

GOOD = {"listen": "0.0.0.0:8443", "authority": "authority", "state": "state", "plans": ["plan.yaml"]}


def written(folder: Path, **changes: object) -> Path:
    """A configuration on disk, with its plan."""
    path = folder / "coordinator.yaml"
    content = {key: value for key, value in (GOOD | changes).items() if value is not ...}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan_document(), sort_keys=False))
    return path


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"listen": "localhost"}, "listen: write HOST:PORT"),
        ({"listen": "localhost:"}, "listen: write HOST:PORT"),
        ({"listen": "localhost:8443\n"}, "listen: write HOST:PORT"),
        ({"listen": "https://localhost:8443"}, "listen: write HOST:PORT"),
        ({"listen": 8443}, "listen: 8443 must be a text: put it in quotes"),
        ({"enrolment_listen": "::1:80"}, "enrolment_listen: write HOST:PORT"),
        ({"listen": "a:1", "enrolment_listen": "A:1"}, "the file: enrolment_listen has the port of listen"),
        (
            {"listen": "[::1]:08443", "enrolment_listen": "[::]:8443"},
            "the file: enrolment_listen has the port of listen",
        ),
        ({"listen": "localhost:65536"}, "listen: a port must be between 1 and 65535"),
        ({"listen": "localhost:0"}, "listen: a port must be between 1 and 65535"),
        ({"authority": ""}, "authority: string should match pattern"),
        ({"authority": "nul\0"}, "authority: string should match pattern"),
        ({"state": ...}, "state: this key is missing"),
        ({"plans": [""]}, "plans.0: string should match pattern"),
        ({"plans": "plan.yaml"}, "plans: list one or more in brackets"),
        ({"plan": ["plan.yaml"]}, "plan: unknown key; did you mean plans?"),
        ({"ports": 3}, "ports: unknown key"),
    ],
)
def test_each_mistake_is_told_at_its_line(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    """A wrong value, a missing and an unknown key are reported with file, line and column."""
    path = written(tmp_path, **changes)

    with pytest.raises(ConfigurationError) as refusal:
        read_configuration(path)

    assert re.search(rf"{re.escape(str(path))}:\d+:\d+: {re.escape(told)}", refusal.value.what)
    assert refusal.value.consequence == "The command did nothing. A running coordinator keeps its settings."


def test_a_missing_starting_file_stops_the_start(tmp_path: Path) -> None:
    """The folder beside coordinator.yaml has to have the file that a plan names; the run starts from its values."""
    plan = plan_with(made_up_identities(), changes={"start": {"name": "file", "seed": 0, "sha256": "0" * 64}})
    values = random_values({"first": (3,), "second": (7,)})
    configuration = read_configuration(written(tmp_path))
    digest = write_starting_file(tmp_path / "starting-files", values)
    right = plan.model_copy(update={"start": FileStart(name="file", seed=0, sha256=digest)})

    (tmp_path / "plan.yaml").write_bytes(plan.canonical)
    with pytest.raises(ConfigurationError, match=r"starting-files/0{64}\.safetensors.*cannot be read"):
        read_plans(configuration)
    (tmp_path / "plan.yaml").write_bytes(right.canonical)

    assert read_plans(configuration) == (right,)


async def test_a_run_starts_from_the_values_of_the_starting_file(tmp_path: Path) -> None:
    """They are what the first offer announces, also after the run went back to its start."""
    values = random_values({"first": (3,), "second": (7,)})
    plan = plan_with(
        made_up_identities(),
        changes={"start": {"name": "file", "seed": 0, "sha256": write_starting_file(tmp_path, values)}},
    )
    offered = []

    starts = partial(starting_values, tmp_path)
    log = coordinator_log(tmp_path / "state")
    engine = Engine(plans=[plan], log=log, identity_of=lambda _: None, clock=time, starts=starts)
    engine.start()
    run = engine._run
    assert run is not None
    offered.append(run.offered(0).values.tobytes())
    run.go_back(None)
    offered.append(run.offered(0).values.tobytes())
    engine.stop()

    assert offered == [values["first"].tobytes() + values["second"].tobytes()] * 2
