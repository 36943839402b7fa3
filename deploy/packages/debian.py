"""Builds Debian packages with dpkg-deb, from a folder with all installed files and from control files."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from materials import write_bill
from wheels import LIBRARY, make_environment

_SCRIPTS: Final = ("preinst", "postinst", "prerm", "postrm")
_HOME: Final = "/usr/lib/global-layers"


@dataclass(frozen=True, kw_only=True)
class Package:
    """One Debian package: its name and its content.

    Attributes:
        name: Debian's name for it.
        short: the folder of its environment.
        requirement: what pip installs.
        programs: entry points by program.
        commands: the programs that are in /usr/bin.
        units: files of deploy/systemd.
        examples: files of deploy/examples.
        state: the directories that a purge removes.
        configuration: the files below /etc that a purge removes.
        priority: decides whose `pki` runs if both packages are installed.
        description: a paragraph of lines below 80 characters.
    """

    name: str
    short: str
    requirement: str
    programs: dict[str, str]
    commands: tuple[str, ...]
    units: tuple[str, ...]
    examples: tuple[str, ...]
    state: tuple[str, ...]
    configuration: tuple[str, ...]
    priority: int
    synopsis: str
    description: tuple[str, ...]

    @property
    def environment(self) -> str:
        """Return the path of the Python environment on a computer where the package is installed."""
        return f"{_HOME}/{self.short}"


PACKAGES: Final = (
    Package(
        name="global-layers-coordinator",
        short="coordinator",
        requirement="global-layers[sampling]",
        programs={"coordinator": "coordinator.__main__:main", "pki": "pki.__main__:main"},
        commands=("coordinator",),
        units=(
            "coordinator.service",
            "coordinator@.service",
            "coordinator-doctor.service",
            "coordinator-doctor.timer",
        ),
        examples=("coordinator.yaml", "plan.yaml"),
        state=("/var/lib/global-layers/coordinator", "/var/lib/global-layers/coordinators"),
        configuration=("/etc/global-layers/coordinator.yaml",),
        priority=20,
        synopsis="coordinator of a federation of hospitals",
        description=(
            "Runs the rounds of studies in which hospitals train models together and",
            "sums what they contribute, which is masked. It has no patients' data and no",
            "PyTorch. Also has the command pki, which makes a federation's authority.",
        ),
    ),
    Package(
        name="global-layers-site",
        short="site",
        requirement="global-layers[site,imaging,torchvision]",
        programs={"site-agent": "site_agent.__main__:main", "pki": "pki.__main__:main"},
        commands=("site-agent",),
        units=(
            "site-agent.service",
            "site-gate.service",
            "site-trainer.service",
            "site-agent@.service",
            "site-gate@.service",
            "site-trainer@.service",
            "site-directories@.service",
            "site-doctor.service",
            "site-doctor.timer",
        ),
        examples=("hospital.yaml", "contract.yaml", "site-trainer-gpu.conf"),
        state=("/var/lib/global-layers/site", "/var/lib/global-layers/sites"),
        configuration=("/etc/global-layers/hospital.yaml",),
        priority=10,
        synopsis="a hospital's side of a federation",
        description=(
            "Three services with one power each: site-agent has the network, site-gate",
            "has the keys, site-trainer has the patients' table. None opens a port.",
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Build:
    """One build: `root` becomes `/`, `output` receives the package, and `store` has third-party files (wheels.py)."""

    package: Package
    version: str
    tree: Path
    wheels: Path
    root: Path
    output: Path
    store: Path


def build_package(build: Build, *, compression: str) -> Path:
    """Copy the files into place, write the control files, build the package, and return its path."""
    before = os.umask(0o022)  # installed files must be readable, whoever builds the package
    try:
        return _build(build, compression)
    finally:
        os.umask(before)


def _build(build: Build, compression: str) -> Path:
    package, root = build.package, build.root
    make_environment(
        root,
        package.environment,
        wheels=build.wheels,
        requirement=package.requirement,
        programs=package.programs,
        store=build.store,
    )
    for command in package.commands:
        _link(root / "usr/bin" / command, f"{package.environment}/bin/{command}")
    _lay_out(build)
    bill = build.output / f"{package.name}_{build.version}.cdx.json"
    library = root / package.environment.lstrip("/") / LIBRARY
    write_bill(bill, package.name, build.version, wheels=build.wheels, library=library)
    shutil.copyfile(bill, _made(root / f"usr/share/doc/{package.name}/sbom.cdx.json"))
    _write_control(build)
    _set_times(root)
    architecture = _architecture()
    made = build.output / f"{package.name}_{build.version}_{architecture}.deb"
    level = ["-z3"] if compression == "zstd" else []
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", f"-Z{compression}", *level, "--build", root, made],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return made


def _lay_out(build: Build) -> None:
    """Copy units, users, directories, examples and pages into the package."""
    package, root, tree = build.package, build.root, build.tree
    systemd = tree / "deploy/systemd"
    for unit in package.units:
        shutil.copyfile(systemd / unit, _made(root / "lib/systemd/system" / unit))
    for kind in ("sysusers.d", "tmpfiles.d"):
        shutil.copyfile(systemd / kind / f"{package.name}.conf", _made(root / f"usr/lib/{kind}/{package.name}.conf"))
    for drop_in in sorted((systemd / "conffiles").glob("*.service.d/*.conf")):
        if drop_in.parent.name.removesuffix(".d") in package.units:
            shutil.copyfile(drop_in, _made(root / "etc/systemd/system" / drop_in.parent.name / drop_in.name))
    for example in package.examples:
        shutil.copyfile(tree / "deploy/examples" / example, _made(root / "usr/share/global-layers/examples" / example))
    documents = root / f"usr/share/doc/{package.name}"
    for page in (tree / "README.md", tree / "CHANGELOG.md", *sorted((tree / "docs").glob("*.md"))):
        shutil.copyfile(page, _made(documents / page.relative_to(tree)))
    shutil.copyfile(tree / "LICENSE", documents / "copyright")


def _write_control(build: Build) -> None:
    package, root = build.package, build.root
    control = root / "DEBIAN"
    control.mkdir()
    size = sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir()) // 1024
    lines = [
        f"Package: {package.name}",
        f"Version: {build.version}",
        f"Architecture: {_architecture()}",
        "Maintainer: The global-layers authors <global-layers@localhost>",
        f"Installed-Size: {size}",
        # A Debian 12 with systemd has all of them, so nothing must be downloaded.
        "Depends: python3 (>= 3.11), python3 (<< 3.12), systemd (>= 252), libc6 (>= 2.28), libstdc++6",
        "Section: science",
        "Priority: optional",
        f"Description: {package.synopsis}",
        *(f" {line}" for line in package.description),
    ]
    (control / "control").write_text("\n".join(lines) + "\n")
    conffiles = sorted(f"/{path.relative_to(root)}" for path in (root / "etc").rglob("*") if path.is_file())
    (control / "conffiles").write_text("".join(f"{path}\n" for path in conffiles))
    named = [unit for unit in package.units if "@" not in unit]
    running = [unit.replace("@.", "@*.") for unit in package.units if "directories" not in unit]
    words = {
        "PACKAGE": package.name,
        "VERSION": build.version,
        "ENVIRONMENT": package.environment,
        "PRIORITY": str(package.priority),
        "NAMED": " ".join(named),
        "UNITS": " ".join(f"'{unit}'" for unit in running),
        "STATE": " ".join(package.state),
        "CONFIGURATION": " ".join(package.configuration),
    }
    for script in _SCRIPTS:
        text = (Path(__file__).parent / "scripts" / script).read_text()
        for word, value in words.items():
            text = text.replace(f"@{word}@", value)
        (control / script).write_text(text)
        (control / script).chmod(0o755)


def _set_times(root: Path) -> None:
    """Give every file the date of its commit, so that equal builds are equal."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in (root, *root.rglob("*")):
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def _architecture() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _link(path: Path, target: str) -> None:
    _made(path).symlink_to(target)
