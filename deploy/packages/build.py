"""Builds the Debian packages of coordinator and site with dpkg-deb: `deploy/packages/build.sh --output dist`.

The wheels of constraints.txt are collected once. Each package has an environment with all of them, for Debian's own
Python of the version that builds it (3.11 on Debian 12, 3.13 on Debian 13), so it installs without internet. dpkg-deb
gives every file the time in SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).parents[2]
HOME: Final = "usr/lib/global-layers"
SITE: Final = "site,imaging,formats,databases"
MINOR: Final = sys.version_info[1]
# A fifth of the libraries' bytes, which only a compiler or a library's own tests read; so are folders named tests.
UNUSED: Final = ("torch/test", "torch/include", "torch/share", "pyarrow/include", "pyarrow/src")


@dataclass(frozen=True, kw_only=True)
class Package:
    """One Debian package: what pip installs, its entry points, its files below deploy/, and the text of its purpose."""

    name: str
    extras: str
    programs: dict[str, str]
    units: tuple[str, ...]
    examples: tuple[str, ...]
    configuration: str
    priority: int  # decides whose `pki` runs if both packages are installed
    description: str

    @property
    def short(self) -> str:
        """The folder of its environment and of its state."""
        return self.name.removeprefix("global-layers-")


PACKAGES: Final = (
    Package(
        name="global-layers-coordinator",
        extras="",
        programs={"coordinator": "coordinator.__main__", "pki": "pki.__main__"},
        units=("coordinator.service", "coordinator@.service", "coordinator-doctor.service", "coordinator-doctor.timer"),
        examples=("coordinator.yaml", "plan.yaml", "plan-prior.yaml", "plan-statistics.yaml"),
        configuration="coordinator.yaml",
        priority=20,
        description="coordinator of a federation of hospitals, which sums what they contribute",
    ),
    Package(
        name="global-layers-site",
        extras=SITE,
        programs={"site-agent": "site_agent.__main__", "pki": "pki.__main__"},
        units=(
            *(f"site-{name}{each}.service" for name in ("agent", "gate", "trainer") for each in ("", "@")),
            "site-directories@.service", "site-doctor.service", "site-doctor.timer",
        ),
        examples=("hospital.yaml", "contract.yaml", "site-trainer-gpu.conf"),
        configuration="hospital.yaml",
        priority=10,
        description="a hospital's side of a federation: one service with the network, one with keys, one with patients",
    ),
)  # fmt: skip


def collect_wheels(folder: Path, cache: Path) -> None:
    """Fill a folder with this project's wheel and the wheels of its dependencies, which stay in the cache."""
    lock = TREE / "deploy/site.lock"
    sources = lock, TREE / "constraints.txt", TREE / "pyproject.toml"
    pins = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    kept = cache / f"wheels-{pins[:16]}"
    with tempfile.TemporaryDirectory() as copy:
        project = Path(copy, "project")  # a build in the tree would leave folders there
        shutil.copytree(
            TREE, project, ignore=shutil.ignore_patterns(".*", "__pycache__", "tests", "benchmarks", "dist")
        )
        if not kept.exists():
            made, others = kept.with_suffix(".incomplete"), Path(copy, "others")
            shutil.rmtree(made, ignore_errors=True)
            _pip("install", "--no-deps", "--require-hashes", "-r", TREE / "deploy/build.lock")
            how = ("--no-deps", "--require-hashes", "--no-build-isolation", "--use-pep517")
            _pip("wheel", *how, "-r", lock, "-w", made)
            _pip("wheel", "-c", TREE / "constraints.txt", "-w", others, "torch")  # no hash in the lock
            for wheel in others.glob("*.whl"):
                if not (made / wheel.name).exists():
                    shutil.move(wheel, made)
            made.rename(kept)
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        _pip("wheel", "--no-deps", "--no-index", "--find-links", kept, "-w", folder, project)
    shutil.copyfile(TREE / "constraints.txt", folder / "constraints.txt")


def build(package: Package, version: str, wheels: Path, output: Path, compression: str) -> Path:
    """Build one package and return its path."""
    with tempfile.TemporaryDirectory(dir=output, prefix=".root-") as folder:
        root = Path(folder, "root")
        _environment(package, root, wheels)
        systemd, documents = TREE / "deploy/systemd", root / f"usr/share/doc/{package.name}"
        copies = {
            **{systemd / unit: root / "lib/systemd/system" / unit for unit in package.units},
            **{
                systemd / kind / f"{package.name}.conf": root / f"usr/lib/{kind}/{package.name}.conf"
                for kind in ("sysusers.d", "tmpfiles.d")
            },
            **{
                path: root / "etc/systemd/system" / path.parent.name / path.name
                for path in (systemd / "conffiles").glob("*/*.conf")
                if path.parent.name.removesuffix(".d") in package.units
            },
            **{
                TREE / "deploy/examples" / one: root / "usr/share/global-layers/examples" / one
                for one in package.examples
            },
            **{page: documents / page.relative_to(TREE) for page in (TREE / "docs").glob("*.md")},
            TREE / "README.md": documents / "README.md",
            TREE / "constraints.txt": documents / "constraints.txt",
            TREE / "LICENSE": documents / "copyright",
        }
        for source, target in copies.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        made = output / f"{package.name}_{version}_{_control(package, version, root)}.deb"
        command = ["dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", root, made]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return made


def _environment(package: Package, root: Path, wheels: Path) -> None:
    """Make the virtual environment of a package below `root`. It works after its files were installed below `/`."""
    place = f"/{HOME}/{package.short}"
    library, programs = root / f"{place}/lib/python3.{MINOR}/site-packages"[1:], root / f"{place}/bin"[1:]
    wanted = f"global-layers[{package.extras}]"
    _pip("install", "--no-index", "--find-links", wheels, "--no-compile", "--target", library, wanted)
    shutil.rmtree(library / "bin", ignore_errors=True)  # programs of libraries, with this computer's paths
    for folder in [*(library / one for one in UNUSED), *library.glob("*/**/tests")]:
        shutil.rmtree(folder, ignore_errors=True)
    # Compiled here, because services cannot write there. File times do not decide, so that equal builds are equal.
    compileall.compile_dir(
        library, quiet=2, workers=0, stripdir=str(root), prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )  # fmt: skip
    programs.mkdir()
    (root / f"{place}/pyvenv.cfg"[1:]).write_text(f"home = /usr/bin\nversion = 3.{MINOR}\n")
    for name in ("python", "python3"):
        (programs / name).symlink_to(f"/usr/bin/python3.{MINOR}")
    for name, module in package.programs.items():
        # -P: modules come from the installation only, never from a working directory.
        (programs / name).write_text(f"#!{place}/bin/python -P\nfrom {module} import main\n\nmain()\n")
        (programs / name).chmod(0o755)
        if name != "pki":
            (root / "usr/bin").mkdir(parents=True)
            (root / "usr/bin" / name).symlink_to(f"{place}/bin/{name}")


def _control(package: Package, version: str, root: Path) -> str:
    """Write the control files, and return the architecture."""
    control, short = root / "DEBIAN", package.short
    control.mkdir()
    architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True)
    kind = architecture.stdout.strip()
    (control / "control").write_text(
        f"Package: {package.name}\nVersion: {version}\nArchitecture: {kind}\n"
        "Maintainer: The global-layers authors <global-layers@localhost>\n"
        f"Depends: python3 (>= 3.{MINOR}), python3 (<< 3.{MINOR + 1}), systemd (>= 252), libc6 (>= 2.28), libstdc++6\n"
        f"Section: science\nPriority: optional\nDescription: {package.description}\n"
    )
    conffiles = sorted(f"/{path.relative_to(root)}\n" for path in (root / "etc").rglob("*") if path.is_file())
    (control / "conffiles").write_text("".join(conffiles))
    running = [unit.replace("@.", "@*.") for unit in package.units if "directories" not in unit]
    words = {
        "PACKAGE": package.name, "VERSION": version, "ENVIRONMENT": f"/{HOME}/{short}",
        "PRIORITY": str(package.priority), "NAMED": " ".join(unit for unit in package.units if "@" not in unit),
        "UNITS": " ".join(f"'{unit}'" for unit in running),
        "STATE": f"/var/lib/global-layers/{short} /var/lib/global-layers/{short}s",
        "CONFIGURATION": f"/etc/global-layers/{package.configuration}",
    }  # fmt: skip
    for script in sorted((Path(__file__).parent / "scripts").iterdir()):
        text = script.read_text()
        for word, value in words.items():
            text = text.replace(f"@{word}@", value)
        (control / script.name).write_text(text)
        (control / script.name).chmod(0o755)
    return kind


def _pip(*words: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", *map(str, words)]
    subprocess.run(command, check=True)


def main() -> None:
    """Read the command line and build both packages."""
    parser = argparse.ArgumentParser(prog="build.sh", description="Build the Debian packages and a bundle of wheels.")
    parser.add_argument("--output", type=Path, default=TREE / "dist", help="folder for the packages (default: dist)")
    parser.add_argument("--cache", type=Path, help="folder that keeps the downloaded wheels between builds")
    parser.add_argument("--revision", type=int, default=1, help="number of this build of one version (default: 1)")
    parser.add_argument("--compression", choices=["none", "gzip", "zstd", "xz"], default="xz", help="(default: xz)")
    options = parser.parse_args()
    os.umask(0o022)  # installed files must be readable, whoever builds the package
    time = subprocess.run(["git", "-C", TREE, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False)
    os.environ.setdefault("SOURCE_DATE_EPOCH", time.stdout.strip() or "315532800")
    output, wheels = options.output.resolve(), options.output.resolve() / "wheels"
    output.mkdir(parents=True, exist_ok=True)
    collect_wheels(wheels, (options.cache or output).resolve())
    version = next(wheels.glob("global_layers-*.whl")).name.split("-")[1]
    for package in PACKAGES:
        made = build(package, f"{version}-{options.revision}", wheels, output, options.compression)
        print(f"{made.stat().st_size / 1e6:7.1f} MB  {made.name}", flush=True)


if __name__ == "__main__":
    main()
