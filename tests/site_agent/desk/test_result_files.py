"""The paths to which a command may write its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos.errors import UnavailableError, UsageError
from site_agent.desk.result_files import check_place, check_places, write_result
from site_agent.hospital import Hospital, read_hospital
from tests.chaos.disks import small_disk
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
    with pytest.raises(UsageError, match="name the same output file"):
        check_places((("--html", one), ("--json", one)), hospital)
    check_places((("--html", one), ("--json", other), ("--metrics", None)), hospital, [settings])


def test_a_full_disk_is_one_that_the_person_named(tmp_path: Path) -> None:
    """The remedy speaks of the disk and folder of the result, and not of the trainer's state."""
    with small_disk(tmp_path / "disk", megabytes=1) as disk, pytest.raises(UnavailableError) as told:
        write_result(disk / "report.html", b"page")

    assert "report.html cannot be written" in told.value.what
    assert "name a folder to which you may write" in told.value.remedy
    assert "trainer" not in str(told.value)
