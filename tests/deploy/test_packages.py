"""The packages' own parts, without the minutes of a build; tests/institutions installs the real ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.deploy.test_units import DEPLOY, TIMERS, UNITS

sys.path.insert(0, str(DEPLOY / "packages"))
from build import PACKAGES, build

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of two wheels, small enough to be packed quickly."""
    folder = tmp_path_factory.mktemp("wheels")
    for name, needs in (("global_layers", "Requires-Dist: tiny\n"), ("tiny", "")):
        information = f"{name}-1.2.3.dist-info"
        with zipfile.ZipFile(folder / f"{name}-1.2.3-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", "def main():\n    return 0\n")
            wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.2.3\n{needs}")
            wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{information}/RECORD", "".join(f"{one},,\n" for one in wheel.namelist()))
    return folder


def made(wheels: Path, folder: Path) -> Path:
    """The coordinator's package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        return build(PACKAGES[0], "1.2.3-1", wheels, folder, "none")


@pytest.fixture(scope="module")
def package(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built package."""
    return made(wheels, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def built(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package unpacked again with its control files."""
    unpacked = tmp_path_factory.mktemp("unpacked") / "package"
    subprocess.run(["dpkg-deb", "--raw-extract", package, unpacked], check=True)
    return unpacked


@pytest.mark.slow
@needs_dpkg
def test_equal_builds_are_equal(package: Path, wheels: Path, tmp_path: Path) -> None:
    """Two builds of one commit give the same bytes."""
    assert made(wheels, tmp_path).read_bytes() == package.read_bytes()


@needs_dpkg
def test_a_package_has_its_environment_its_units_and_its_users_inside(built: Path) -> None:
    """Programs start with the interpreter at their target; no file has the path of the build."""
    environment = built / "usr/lib/global-layers/coordinator"

    program = (environment / "bin/coordinator").read_text()
    assert program.startswith("#!/usr/lib/global-layers/coordinator/bin/python -P\n")
    assert (environment / "bin/python").readlink() == Path(f"/usr/bin/python3.{sys.version_info[1]}")
    assert (environment / f"lib/python3.{sys.version_info[1]}/site-packages/tiny.py").is_file()
    assert (built / "lib/systemd/system/coordinator.service").is_file()
    assert (built / "usr/lib/sysusers.d/global-layers-coordinator.conf").is_file()
    assert not [path for path in environment.rglob("*.pyc") if b"/.root-" in path.read_bytes()]


@needs_dpkg
def test_configuration_is_kept_and_nothing_else_is_configuration(built: Path) -> None:
    """Each file below /etc is a conffile. The package has no service's own configuration, so none is overwritten."""
    shipped = sorted(f"/{path.relative_to(built)}" for path in (built / "etc").rglob("*") if path.is_file())

    assert shipped
    assert (built / "DEBIAN/conffiles").read_text().split() == shipped
    assert not (built / "etc/global-layers").exists()


@needs_dpkg
def test_installing_neither_starts_nor_enables(built: Path) -> None:
    """The script restarts running services. It starts or enables no other service."""
    words = (built / "DEBIAN/postinst").read_text()

    assert "systemctl start" not in words
    assert "systemctl enable" not in words
    assert "try-restart" in words
    assert "@" not in words.replace("@*.", "").replace("@.", "")


def test_every_unit_is_in_a_package() -> None:
    """Every unit of the tree is in a package, and no package names a missing unit."""
    packed = sorted(unit for package in PACKAGES for unit in package.units)

    assert packed == sorted(unit.name for unit in (*UNITS, *TIMERS))
