"""The packages' own parts, without the minutes of a build; tests/institutions installs the real ones."""

from __future__ import annotations

import fcntl
import json
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.test_units import DEPLOY, TIMERS, UNITS

SCRIPTS = sorted((DEPLOY / "packages/scripts").iterdir())
METADATA = "Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: {licence}\n"
# The files of a library, and whether a program needs them.
SHIPPED = {
    "tests/__init__.py": False,
    "deeper/tests/data/table.csv": False,
    "deeper/tests/LICENSE.txt": True,
    "deeper/testing.py": True,
    "tests.py": True,
    "lib.a": False,
}

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")


def module(name: str) -> dict[str, Any]:
    """The names of one file of the builder, which is run as a script beside its own modules."""
    sys.path.insert(0, str(DEPLOY / "packages"))
    try:
        return runpy.run_path(str(DEPLOY / f"packages/{name}.py"))
    finally:
        sys.path.remove(str(DEPLOY / "packages"))


DEBIAN = module("debian")
WHEELS = module("wheels")
PACKAGES = DEBIAN["PACKAGES"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of two wheels, small enough to be packed quickly."""
    folder = tmp_path_factory.mktemp("wheels")
    for name, licence, needs in (("global-layers", "Apache-2.0", "Requires-Dist: tiny\n"), ("tiny", "MIT", "")):
        module_name = name.replace("-", "_")
        information = f"{module_name}-1.2.3.dist-info"
        with zipfile.ZipFile(folder / f"{module_name}-1.2.3-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{module_name}.py", "def main():\n    return 0\n")
            for file in (f"{module_name}_parts/{path}" for path in ("__init__.py", *SHIPPED)):
                wheel.writestr(file, "")
            wheel.writestr(
                f"{information}/METADATA", METADATA.format(name=name, version="1.2.3", licence=licence) + needs
            )
            wheel.writestr(f"{information}/entry_points.txt", f"[console_scripts]\n{name}-x = {module_name}:main\n")
            wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{information}/RECORD", "".join(f"{name},,\n" for name in wheel.namelist()))
    return folder


@pytest.fixture(scope="module")
def packages(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The coordinator's package, made of those wheels from nothing, and again after one of an older commit."""
    made, cache = [], tmp_path_factory.mktemp("cache")
    for commit in (1700000000, 1600000000, 1700000000):
        folder = tmp_path_factory.mktemp("built")
        with pytest.MonkeyPatch.context() as patch, WHEELS["opened_store"](DEPLOY.parent, cache) as store:
            patch.setenv("SOURCE_DATE_EPOCH", str(commit))
            build = DEBIAN["Build"](
                package=PACKAGES[0], version="1.2.3-1", tree=DEPLOY.parent, wheels=wheels, root=folder / "root",
                output=folder, store=store,
            )  # fmt: skip
            made.append(DEBIAN["build_package"](build, compression="none"))
    return [made[0], made[2]]


@pytest.fixture(scope="module")
def built(packages: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package unpacked again with its control files."""
    unpacked = tmp_path_factory.mktemp("unpacked") / "package"
    subprocess.run(["dpkg-deb", "--raw-extract", packages[0], unpacked], check=True)
    return unpacked


@pytest.mark.slow
@needs_dpkg
def test_equal_builds_are_equal_from_the_store_too(packages: list[Path]) -> None:
    """A build with libraries from a build of another commit gives the same package as a build from nothing."""
    assert packages[0].read_bytes() == packages[1].read_bytes()


def test_the_store_takes_away_what_it_kept_before_and_nothing_else(tmp_path: Path) -> None:
    """Also files of an interrupted build are removed.

    No folder of another user is removed, and no part of an older store remains.
    """
    others, older = tmp_path / "libraries-of-mine", tmp_path / "libraries-0123456789abcdef"
    for folder in (others, older / "wheels"):
        folder.mkdir(parents=True)
    with WHEELS["opened_store"](DEPLOY.parent, tmp_path) as store:
        left = store / "work" / "left"
    left.mkdir(parents=True)
    older.mkdir()

    with WHEELS["opened_store"](DEPLOY.parent, tmp_path) as store:
        found = sorted(path.name for path in tmp_path.iterdir() if path.is_dir()), left.exists(), older.exists()

    assert found == (sorted([others.name, store.name]), False, False)


def test_two_builds_at_once_take_turns_at_one_store(tmp_path: Path) -> None:
    """While a build uses the store, no other build gets its lock, because it would replace the libraries in use."""
    with (
        WHEELS["opened_store"](DEPLOY.parent, tmp_path),
        (tmp_path / "libraries.lock").open() as lock,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_build_from_a_full_store_asks_no_registry(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for what builds this project's own wheel; and the folder has that wheel beside the kept ones."""
    asked = []
    collect = WHEELS["collect_wheels"]

    def pip(*words: object) -> None:
        asked.append("--no-index" not in words)
        folder = Path(str(words[words.index("--wheel-dir") + 1]))
        folder.mkdir(exist_ok=True)
        shutil.copy(wheels / "global_layers-1.2.3-py3-none-any.whl", folder)

    monkeypatch.setitem(collect.__globals__, "_pip", pip)
    with WHEELS["opened_store"](DEPLOY.parent, tmp_path / "cache") as store:
        collect(DEPLOY.parent, tmp_path / "first", store)
        shutil.copy(wheels / "tiny-1.2.3-py3-none-any.whl", store / "wheels")
        first = asked.copy()
        asked.clear()
        collect(DEPLOY.parent, tmp_path / "next", store)

    assert first == [True, True, False]
    assert asked == [False]
    assert sorted(path.name for path in (tmp_path / "next").iterdir()) == sorted(path.name for path in wheels.iterdir())


def test_libraries_are_kept_of_the_wheels_that_they_were_made_of(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other wheels under the same pins (`--wheels`), a build does not use results of the earlier ones."""
    monkeypatch.setitem(WHEELS["_libraries"].__globals__, "_install", lambda library, *_, **__: library.mkdir())
    changed = shutil.copytree(wheels, tmp_path / "changed")
    with zipfile.ZipFile(changed / "tiny-1.2.3-py3-none-any.whl", "a") as wheel:
        wheel.writestr("tiny_parts/more.py", "")

    with WHEELS["opened_store"](DEPLOY.parent, tmp_path / "cache") as store:
        first, again, other = (
            WHEELS["_libraries"](store, "/usr/lib/x", folder, "global-layers", set())
            for folder in (wheels, wheels, changed)
        )

    assert first == again != other


@needs_dpkg
def test_a_package_has_its_environment_its_units_and_its_materials_inside(built: Path) -> None:
    """Programs start with the interpreter at their target; units, users, folders and a bill of materials are there."""
    program = built / "usr/lib/global-layers/coordinator/bin/coordinator"

    assert program.read_text().startswith("#!/usr/lib/global-layers/coordinator/bin/python -P\n")
    assert (built / "usr/lib/global-layers/coordinator/bin/python").readlink() == Path("/usr/bin/python3.11")
    assert (built / "lib/systemd/system/coordinator.service").is_file()
    assert (built / "usr/lib/sysusers.d/global-layers-coordinator.conf").is_file()
    bill = json.loads((built / "usr/share/doc/global-layers-coordinator/sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert [(part["name"], part["version"]) for part in bill["components"]] == [
        ("global-layers", "1.2.3"),
        ("tiny", "1.2.3"),
    ]
    assert not [path for path in built.rglob("*.py*") if str(built.parent).encode() in path.read_bytes()]


@needs_dpkg
def test_what_no_program_reads_is_left_out_and_licences_stay(built: Path) -> None:
    """Libraries' tests, programs and linker objects are neither in the package nor on pip's lists; every licence is."""
    library = built / "usr/lib/global-layers/coordinator/lib/python3.11/site-packages"
    listed = (library / "tiny-1.2.3.dist-info/RECORD").read_text()

    assert {path: (library / "tiny_parts" / path).is_file() for path in SHIPPED} == SHIPPED
    assert {path: f"tiny_parts/{path}," in listed for path in SHIPPED} == SHIPPED
    assert not (library / "tiny_parts/tests").exists()
    assert not (library / "bin").exists()
    assert not [path for path in library.glob("*/RECORD") if "bin/" in path.read_text()]


@needs_dpkg
def test_configuration_is_kept_and_nothing_else_is_configuration(built: Path) -> None:
    """Each file below /etc is a conffile. The package has no service's own configuration, so none is overwritten."""
    shipped = sorted(f"/{path.relative_to(built)}" for path in (built / "etc").rglob("*") if path.is_file())

    assert shipped
    assert (built / "DEBIAN/conffiles").read_text().split() == shipped
    assert not (built / "etc/global-layers").exists()


@needs_dpkg
@pytest.mark.parametrize(
    ("before", "status"), [("1.2.4-1", 1), ("1.3.0-1", 1), ("1.2.3-2", 1), ("1.2.3-1", 0), ("1.2.2-9", 0), ("", 0)]
)
def test_a_downgrade_is_refused_with_a_reason(built: Path, before: str, status: int) -> None:
    """The package refuses to replace a newer one and explains the risk. It allows everything else."""
    words = [built / "DEBIAN/preinst", *(("upgrade", before) if before else ("install",))]

    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == status
    assert ("may not be readable" in done.stderr) is bool(status)


@needs_dpkg
def test_installing_neither_starts_nor_enables(built: Path) -> None:
    """The scripts restart running services and stop removed ones. They start or enable no other service."""
    words = " ".join((built / "DEBIAN" / name).read_text() for name in ("preinst", "postinst"))

    assert "systemctl start" not in words
    assert "systemctl enable" not in words
    assert "try-restart" in words


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_are_plain_shell(script: Path) -> None:
    """Each maintainer script has no mistake that a shell can find, and ends at the first failure."""
    text = script.read_text()
    done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert text.splitlines()[1] == "set -e"


def test_every_unit_is_in_a_package() -> None:
    """Every unit of the tree is in a package, and no package names a missing unit."""
    packed = sorted(unit for package in PACKAGES for unit in package.units)

    assert packed == sorted(unit.name for unit in (*UNITS, *TIMERS))


def test_every_program_of_a_package_is_one_of_the_project() -> None:
    """The entry points of the packages are those of pyproject.toml."""
    import tomllib

    known = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["scripts"]

    for package in PACKAGES:
        assert package.programs.items() <= known.items()


def test_checksums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    """SHA256SUMS is read by sha256sum, and a changed file is reported."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/one.whl").write_text("one")
    module("materials")["write_checksums"](tmp_path)
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]

    before = subprocess.run(check, cwd=tmp_path, capture_output=True, check=False)
    (tmp_path / "wheels/one.whl").write_text("other")
    after = subprocess.run(check, cwd=tmp_path, capture_output=True, check=False)

    assert (before.returncode, after.returncode) == (0, 1)
