"""The first federation of four booted institutions, created by the exact words of the runbook.

Run these tests with `tests/run.sh -m slow tests/institutions`, as root. The files follow one another in the order of
their names, and the tests in their order in a file. One file alone runs too, after the fixtures that it asks for.
"""

from __future__ import annotations

import json

import pytest

from tests.institutions.federation import HOSPITALS, HURRIED, SITE, Federation
from tests.institutions.machines import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]

RUNS = "/var/lib/global-layers/coordinator/state/runs"


def test_the_runbooks_first_federation_trains_masked_to_the_end(founded: Federation) -> None:
    """The exact words of the runbook lead from packages to models and reports at every hospital. One of them began with
    a bare Debian, and has typed five commands and edited one file."""
    assert (founded.typed[HURRIED], founded.edited[HURRIED]) == (5, 1)
    (run,) = founded.office.run("ls", RUNS).split()
    record = json.loads(founded.office.run("cat", f"{RUNS}/{run}/record.json"))
    assert record["is_complete"]
    assert record["masked"]
    for name in HOSPITALS:
        hospital = founded.machines[name]
        wait_until(lambda: hospital.property("site-gate", "ActiveState") == "inactive", "it ends")  # noqa: B023
        assert hospital.property("site-gate", "ExecMainStatus") == "0"
        assert f"{run}.json" in hospital.run("ls", f"{SITE}/reports", user="site-trainer")
        assert run in hospital.run("ls", f"{SITE}/models", user="site-trainer")
