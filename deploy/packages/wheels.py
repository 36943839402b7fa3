"""Collects Python packages (wheels) in the versions of constraints.txt, and installs them into an environment.

The dependencies take nearly all of the build time and rarely change. So a store keeps them from build to build: their
wheels, the build tools of a wheel, and each environment pruned and compiled without this project.
"""

from __future__ import annotations

import compileall
import fcntl
import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pruning import prune

INTERPRETER: Final = "/usr/bin/python3.11"
LIBRARY: Final = "lib/python3.11/site-packages"
OWN: Final = "global_layers"
WORK: Final = "work"
ROOMS: Final = ("protos", "host", "audit", "pki", "coordinator", "site_agent")


@contextmanager
def opened_store(tree: Path, cache: Path) -> Iterator[Path]:
    """Yield the folder in `cache` with other projects' wheels in the fixed versions. Remove older folders.

    Only one build uses the folder at a time; another build waits. Unfinished files are only in its subfolder `work`. So
    an interrupted build leaves nothing that looks complete.
    """
    cache.mkdir(parents=True, exist_ok=True)
    decisive = (tree / "constraints.txt", tree / "pyproject.toml", *sorted(Path(__file__).parent.glob("*.py")))
    words = f"{sys.version} {sysconfig.get_platform()}".encode()
    digest = hashlib.sha256(words + b"".join(path.read_bytes() for path in decisive)).hexdigest()[:16]
    store = cache / f"libraries-{digest}"
    with (cache / "libraries.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (store / WORK).exists():
            shutil.rmtree(store / WORK)
        (store / WORK).mkdir(parents=True)
        for older in cache.glob(f"libraries-{'[0-9a-f]' * 16}"):
            if older != store:
                older.rename(store / WORK / older.name)  # an incomplete store could later look complete
        yield store
        shutil.rmtree(store / WORK)


def collect_wheels(tree: Path, folder: Path, store: Path) -> None:
    """Fill a folder with the wheels of this project and of its dependencies at a site.

    Args:
        folder: its content is replaced.
        store: third-party wheels and build tools. If it lacks one, a registry is needed.
    """
    if folder.exists():
        shutil.rmtree(folder)
    # Build from a copy, because a build in the tree would leave folders there and pack files of an earlier build.
    with tempfile.TemporaryDirectory(dir=store / WORK) as copy:
        project = Path(copy, "project")
        project.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copyfile(tree / name, project / name)
        for room in ROOMS:
            shutil.copytree(tree / room, project / room, ignore=shutil.ignore_patterns("__pycache__"))
        if not (store / "wheels").exists():
            made = Path(copy, "wheels")
            wanted = f"{project}[site,imaging,torchvision]"
            _pip("wheel", "--constraint", tree / "constraints.txt", "--wheel-dir", made, wanted)
            next(made.glob(f"{OWN}-*.whl")).unlink()
            made.rename(store / "wheels")
        if not (store / "tools").exists():
            tools = Path(copy, "tools")
            required = tomllib.loads((tree / "pyproject.toml").read_text())["build-system"]["requires"]
            _pip("wheel", "--constraint", tree / "constraints.txt", "--wheel-dir", tools, *required)
            tools.rename(store / "tools")
        shutil.copytree(store / "wheels", folder, copy_function=_link)
        _pip("wheel", "--no-deps", "--no-index", "--find-links", store / "tools", "--wheel-dir", folder, project)


def version_of(wheels: Path) -> str:
    """Return the version of this project, from the name of its wheel in a folder."""
    return _own(wheels).name.split("-")[1]


def make_environment(
    root: Path, place: str, *, wheels: Path, requirement: str, programs: dict[str, str], store: Path
) -> None:
    """Create a virtual environment below `root` that works after its files were installed below `/`.

    Args:
        place: absolute path of the environment after installation.
        wheels: a folder with all wheels; nothing is downloaded.
        requirement: what to install, such as `global-layers[site]`.
        programs: entry points as `module:function`, by the name of their program.
    """
    environment = root / place.lstrip("/")
    library = environment / LIBRARY
    with tempfile.TemporaryDirectory(dir=store / WORK) as folder:
        own = Path(folder, "own")
        _install(own, place, wheels, "--no-deps", OWN)
        others = _libraries(store, place, wheels, requirement, {path.name for path in own.iterdir()})
        for part in (own, others):
            shutil.copytree(part, library, symlinks=True, copy_function=_link, dirs_exist_ok=True)
    # The interpreter is Debian's own, so that its security updates apply to this environment too.
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


def _libraries(store: Path, place: str, wheels: Path, requirement: str, own: set[str]) -> Path:
    """Return the third-party part of an environment. It is built once from these wheels, without our own packages."""
    sizes = sorted(f"{wheel.name} {wheel.stat().st_size}\n" for wheel in wheels.glob("*.whl") if wheel != _own(wheels))
    kept = store / f"{Path(place).name}-{hashlib.sha256(''.join(sizes).encode()).hexdigest()[:16]}"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=store / WORK) as folder:
            library = Path(folder, "library")
            _install(library, place, wheels, requirement, without=own)
            library.rename(kept)
    return kept


def _install(library: Path, place: str, wheels: Path, *words: str, without: Iterable[str] = ()) -> None:
    """Install packages into a new folder, then prune and compile them."""
    _pip("install", "--no-index", "--find-links", wheels, "--no-compile", "--target", library, *words)
    # These are programs with the path of the interpreter that installed them in the first line.
    for name in ("bin", *without):
        path = library / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    prune(library)
    _compile(library, place)


def _own(wheels: Path) -> Path:
    (own,) = wheels.glob(f"{OWN}-*.whl")
    return own


def _link(source: str, target: str) -> None:
    """Copy a file by a hard link if possible."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _compile(library: Path, place: str) -> None:
    """Compile the modules here, because services cannot write there and each start would take seconds longer."""
    done = compileall.compile_dir(
        library,
        quiet=2,
        workers=0,
        stripdir=str(library),
        prependdir=f"{place}/{LIBRARY}",
        # Without file times, so that two builds are equal; dpkg protects the installed files.
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    del done  # false if a library ships a file for another version of Python; nothing imports it


def _pip(*words: object) -> None:
    """Run pip to its end. An error has pip's own output."""
    command = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", *map(str, words)]
    subprocess.run(command, check=True)
