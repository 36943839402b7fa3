"""Wheels: collected under constraints.txt, then installed into a folder that becomes an environment."""

from __future__ import annotations

import compileall
import py_compile
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pruning import prune

INTERPRETER: Final = "/usr/bin/python3.11"
LIBRARY: Final = "lib/python3.11/site-packages"
ROOMS: Final = ("protos", "pki", "coordinator", "site_agent")


def collect_wheels(tree: Path, folder: Path) -> None:
    """Fill a folder with the wheels of this project and of all that a site needs; needs a registry."""
    if folder.exists():
        shutil.rmtree(folder)
    # Of a copy: building in the tree would leave folders there, and pack what an earlier build left.
    with tempfile.TemporaryDirectory() as copy:
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copyfile(tree / name, Path(copy, name))
        for room in ROOMS:
            shutil.copytree(tree / room, Path(copy, room), ignore=shutil.ignore_patterns("__pycache__"))
        _pip("wheel", "--constraint", tree / "constraints.txt", "--wheel-dir", folder, f"{copy}[site]")


def version_of(wheels: Path) -> str:
    """The version of this project among the wheels."""
    (own,) = wheels.glob("global_layers-*.whl")
    return own.name.split("-")[1]


def make_environment(root: Path, place: str, *, wheels: Path, requirement: str, programs: dict[str, str]) -> None:
    """Make a virtual environment below `root` that works when `root` has become `/`.

    Args:
        root: the folder that becomes the package.
        place: absolute path of the environment once it is installed.
        wheels: a folder with all wheels; nothing is downloaded.
        requirement: what to install, such as `global-layers[site]`.
        programs: entry points as `module:function`, by the name of their program.
    """
    environment = root / place.lstrip("/")
    library = environment / LIBRARY
    library.mkdir(parents=True)
    _pip("install", "--no-index", "--find-links", wheels, "--no-compile", "--target", library, requirement)
    # Programs of others, with the path of the interpreter that installed them in the first line.
    shutil.rmtree(library / "bin", ignore_errors=True)
    prune(library)
    # The interpreter is Debian's own, so that its security updates reach this environment too.
    (environment / "pyvenv.cfg").write_text(
        f"home = {Path(INTERPRETER).parent}\ninclude-system-site-packages = false\nversion = 3.11\n"
    )
    programs_folder = environment / "bin"
    programs_folder.mkdir()
    for name in ("python", "python3"):
        (programs_folder / name).symlink_to(INTERPRETER)
    for name, entry in programs.items():
        module, function = entry.split(":")
        program = programs_folder / name
        # -P: modules come from the installation only, never from a working directory.
        program.write_text(
            f"#!{place}/bin/python -P\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        )
        program.chmod(0o755)
    _compile(library, place)


def _compile(library: Path, place: str) -> None:
    """Compile once here: the services may not write there, and a start would take seconds longer."""
    done = compileall.compile_dir(
        library,
        quiet=2,
        workers=0,
        stripdir=str(library),
        prependdir=f"{place}/{LIBRARY}",
        # No time of a file inside, so that two builds are equal; dpkg guards what is installed.
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    del done  # false where a library ships a file for another version of Python; nothing imports that


def _pip(*words: object) -> None:
    """Run pip to its end; its own words explain a failure."""
    command = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", *map(str, words)]
    subprocess.run(command, check=True)
