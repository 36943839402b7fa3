"""Builds packages for institutions: `deploy/packages/build.sh`, or `python deploy/packages` with Python 3.11 and pip.

Wheels are collected once, under constraints.txt. Everything else is made of them without a network, so two builds of
one commit on one machine give the same files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))

from debian import PACKAGES, Build, build_package
from materials import write_bill, write_checksums
from wheels import WORK, collect_wheels, opened_store, version_of

ROOT: Final = Path(__file__).parents[2]
# 1980, the oldest date that a wheel can store, for a tree without history.
_NO_HISTORY: Final = "315532800"


def main() -> None:
    """Read the command line and build the packages."""
    options = _options()
    os.environ["SOURCE_DATE_EPOCH"] = os.environ.get("SOURCE_DATE_EPOCH") or _time_of_commit()
    os.umask(0o022)
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    wheels = options.wheels.resolve() if options.wheels else output / "wheels"
    with (
        tempfile.TemporaryDirectory(dir=output, prefix=".store-") as folder,
        opened_store(ROOT, (options.cache or Path(folder)).resolve()) as store,
    ):
        if not options.wheels:
            collect_wheels(ROOT, wheels, store)
        version = f"{version_of(wheels)}-{options.revision}"
        for package in PACKAGES:
            if options.only and package.name not in options.only:
                continue
            with tempfile.TemporaryDirectory(dir=store / WORK) as place:
                build = Build(
                    package=package,
                    version=version,
                    tree=ROOT,
                    wheels=wheels,
                    root=Path(place, "root"),  # not the folder itself, which only its owner can enter
                    output=output,
                    store=store,
                )
                made = build_package(build, compression=options.compression)
            print(f"{made.stat().st_size / 1e6:7.1f} MB  {made.name}", flush=True)
    if not options.wheels:
        shutil.copyfile(ROOT / "constraints.txt", wheels / "constraints.txt")
        write_bill(output / "global-layers-wheels.cdx.json", "global-layers-wheels", version, wheels=wheels)
    write_checksums(output)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="build.sh", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="folder for the built packages (default: dist)"
    )
    parser.add_argument(
        "--wheels", type=Path, help="folder with the wheels of an earlier build. With this option nothing is downloaded"
    )
    parser.add_argument("--cache", type=Path, help="folder that stores third-party packages between builds")
    parser.add_argument(
        "--revision", type=int, default=1, help="number of this build, if the same version is built again (default: 1)"
    )
    parser.add_argument("--only", action="append", choices=[package.name for package in PACKAGES], help="this package")
    parser.add_argument(
        "--compression",
        choices=["none", "gzip", "zstd", "xz"],
        default="xz",
        help="compression of the package. xz makes the smallest file and takes longest (default: xz)",
    )
    return parser.parse_args()


def _time_of_commit() -> str:
    """Return the time of the newest commit in seconds since 1970. It is the date of every file in the packages."""
    told = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or _NO_HISTORY


if __name__ == "__main__":
    main()
