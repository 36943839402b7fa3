"""The paths to which a command may write its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos.errors import UsageError
from site_agent.desk.result_files import check_place, check_places
from site_agent.hospital import Hospital, read_hospital
from tests.site_agent.trainer.sites import make_site


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    """A site that has not trained."""
    return read_hospital(make_site(tmp_path))


def test_nothing_is_written_into_the_state_folder(hospital: Hospital) -> None:
    """Neither over what is there nor beside it."""
    for name in ("audit.log", "keys/site.pem", "new.csv"):
        with pytest.raises(UsageError, match="state folder"):
            check_place(hospital.state_path / name, "--output", hospital)


def test_what_is_read_is_not_replaced_and_two_results_are_two_files(hospital: Hospital, tmp_path: Path) -> None:
    """The configuration's own file among it; another file is allowed."""
    settings = tmp_path / "hospital.yaml"
    settings.touch(exist_ok=True)
    one, other = tmp_path / "one", tmp_path / "other"

    with pytest.raises(UsageError, match="is read by this command"):
        check_places((("--html", settings),), hospital, [settings])
    with pytest.raises(UsageError, match="name the same file"):
        check_places((("--html", one), ("--json", one)), hospital)
    check_places((("--html", one), ("--json", other), ("--metrics", None)), hospital, [settings])
