"""Four institutions, installed from the packages of this tree and booted once for all tests of this folder. The root
file system and the packages are kept in a cache (INSTITUTIONS_CACHE, else ~/.cache/global-layers), so that only the
first start, and one after a change of the tree, takes minutes more. INSTITUTIONS_PACKAGES names a folder of packages to
be tried instead, revisions 1 and 2 of the site's."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.institutions.federation import HOSPITALS, HURRIED, OFFICE, OFFICE_NAME, Federation
from tests.institutions.machines import Institutions, wait_until, why_not

ROOT: Final = Path(__file__).parents[2]
DEBIAN: Final = "systemd,systemd-sysv,dbus,python3,iproute2,nftables,ca-certificates,procps"
PODMAN: Final = "systemd,systemd-sysv,dbus,podman,netavark,catatonit,nftables,crun,procps"
ROOMS: Final = ("global_layers", "protos", "host", "pki", "coordinator", "site_agent")
SOURCES: Final = (*ROOMS, "deploy", "docs", "pyproject.toml", "constraints.txt")
# Services that only slow a boot down, or connect to the outside.
MASKED: Final = (
    "getty.target",
    "console-getty.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "systemd-logind.service",
)
# A hospital's firewall: it allows outgoing connections and no incoming ones.
FIREWALL: Final = """#!/usr/sbin/nft -f
flush ruleset
table inet hospital {
    chain input {
        type filter hook input priority 0; policy drop;
        iif lo accept
        ct state established,related accept
    }
}
"""
EVERY_ROUND: Final = ("round_closed", "contribution_released", "pam_unix")
# Watchdogs with shorter times, so that their tests end sooner. The trainer must load torch between two signals. The
# continuous study gives way to people who type commands meanwhile.
DROP_IN: Final = "[Service]\nWatchdogSec={seconds}\nTimeoutAbortSec=2\nNice=10\n"
WATCHDOG_SECONDS: Final = {"coordinator": 8, "site-agent": 8, "site-gate": 8, "site-trainer": 15}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the last lines of each institution's journal, because nobody can read them afterwards."""
    report = yield
    federation = getattr(item, "funcargs", {}).get("federation")
    if report.failed and federation is not None:
        for name, machine in federation.machines.items():
            with suppress(AssertionError, subprocess.TimeoutExpired):
                said = machine.run("journalctl", "--no-pager", "--lines=1000").splitlines()
                told = [line for line in said if not any(event in line for event in EVERY_ROUND)]
                report.sections.append((f"journal of {name}", "\n".join(told[-60:])))
    return report


@pytest.fixture(scope="session")
def cache() -> Iterator[Path]:
    """The cache for slow results. One run at a time uses it, because each removes older packages and systems."""
    reason = why_not()
    if reason:
        pytest.skip(f"{reason}, so no institution is booted")
    place = Path(os.environ.get("INSTITUTIONS_CACHE") or Path.home() / ".cache/global-layers")
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Asked to end, it takes down what it has booted; a shell in the background hears no interrupt.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        yield place
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def packages(cache: Path) -> Path:
    """The packages of this tree, and of the site's a second revision for an upgrade."""
    given = os.environ.get("INSTITUTIONS_PACKAGES")
    if given:
        return Path(given).resolve()
    digest = hashlib.sha256()
    for path in sorted(path for source in SOURCES for path in _files(ROOT / source)):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    folder = cache / f"packages-{digest.hexdigest()[:16]}"
    if not (folder / "complete").exists():
        for older in cache.glob("packages-*"):
            shutil.rmtree(older)
        words = ("--output", folder, "--cache", cache, "--compression", "none")
        subprocess.run([ROOT / "deploy/packages/build.sh", *words], check=True)
        (site,) = folder.glob("global-layers-site_*-1_*.deb")
        _repack(site, site.with_name(site.name.replace("-1_", "-2_")))
        (folder / "complete").touch()
    return folder


@pytest.fixture(scope="session")
def debian(cache: Path) -> Path:
    """A root file system of Debian 12, as one file."""
    return _debian(cache / "debian.tar", "bookworm", DEBIAN)


@pytest.fixture(scope="session")
def bare(cache: Path, debian: Path) -> Path:
    """That root file system unpacked, without any package of this project."""
    return _unpacked(debian, cache / "debian")


@pytest.fixture(scope="session")
def trixie(cache: Path) -> Path:
    """A root file system of Debian 13 with podman, unpacked; Debian 12 has no Quadlet."""
    return _unpacked(_debian(cache / "trixie.tar", "trixie", PODMAN), cache / "trixie")


@pytest.fixture(scope="session")
def base(cache: Path, debian: Path, packages: Path) -> Path:
    """The same with both packages, which all but one institution share."""
    made = [f"{path} {path.stat().st_mtime_ns}" for path in sorted(packages.glob("*-1_*.deb"))]
    root = cache / f"root-{hashlib.sha256(' '.join(made).encode()).hexdigest()[:16]}"
    if not (root / "complete").exists():
        for older in cache.glob("root-*"):
            shutil.rmtree(older)
        _unpack(debian, root)
        for package in packages.glob("*-1_*.deb"):
            shutil.copyfile(package, root / "tmp" / package.name)
        install = "dpkg --force-unsafe-io --install /tmp/*.deb && rm /tmp/*.deb"
        subprocess.run(["chroot", root, "sh", "-c", install], check=True, stdout=subprocess.DEVNULL)
        (root / "complete").touch()
    return root


@pytest.fixture(scope="session")
def federation(
    bare: Path, base: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Federation]:
    """An office and three hospitals, booted, one of them a bare Debian; nothing is configured yet."""

    def arguments(name: str) -> list[str]:
        bound = [f"--bind-ro={packages}:/srv/packages"]
        # A small disk of its own, so that it can be filled.
        return [*bound, "--tmpfs=/var/lib/global-layers:size=256M"] if name == HOSPITALS[2] else bound

    work = tmp_path_factory.mktemp("institutions")
    names = {OFFICE: OFFICE_NAME}
    with Institutions(
        lambda name: bare if name == HURRIED else base,
        work, prepare=_prepare, further_names=names, arguments=arguments,
    ) as institutions:  # fmt: skip
        institutions.boot(OFFICE, *HOSPITALS)
        found = Federation(institutions)
        found.bring_tables()
        yield found


@pytest.fixture(scope="session")
def founded(federation: Federation) -> Federation:
    """The federation after its first study, which the runbook's words have brought about."""
    federation.follow("Install", only="each hospital", at=[HURRIED])
    federation.follow("First federation", everywhere=True)
    wait_until(lambda: federation.office.property("coordinator", "ActiveState") == "inactive", "the study is over")
    return federation


@pytest.fixture(scope="session")
def under_way(founded: Federation) -> Federation:
    """The federation with a long study under way, after its first one."""
    founded.begin_long_study("long")
    return founded


def mask(root: Path) -> Path:
    """Mask services that only slow a boot down. Return the folder of units."""
    units = root / "etc/systemd/system"
    for unit in MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    return units


def _prepare(root: Path, name: str) -> None:
    units = mask(root)
    for service, seconds in WATCHDOG_SECONDS.items():
        folder = units / f"{service}.service.d"
        folder.mkdir(exist_ok=True)
        (folder / "test.conf").write_text(DROP_IN.format(seconds=seconds))
    # Unpack without syncing each file, because nobody keeps these systems.
    (root / "etc/dpkg/dpkg.cfg.d/unsafe").write_text("force-unsafe-io\n")
    if name in HOSPITALS:
        (root / "etc/nftables.conf").write_text(FIREWALL)
        wanted = units / "sysinit.target.wants"
        wanted.mkdir(exist_ok=True)
        (wanted / "nftables.service").symlink_to("/lib/systemd/system/nftables.service")


def _debian(tar: Path, release: str, packages: str) -> Path:
    """Make a root file system from the mirror that this computer itself uses, unless it is there."""
    if not tar.exists():
        found = [*sorted(Path("/etc/apt").glob("sources.list.d/*.sources")), Path("/etc/apt/sources.list")]
        texts = [(path.suffix, text) for path in found if path.is_file() and "bookworm" in (text := path.read_text())]
        if not texts:
            pytest.skip("this computer knows no mirror of Debian 12, so no institution is booted")
        partial = tar.with_suffix(".partial.tar")
        sources = tar.with_suffix(texts[0][0])
        sources.write_text(texts[0][1].replace("bookworm", release))
        command = ["mmdebstrap", "--quiet", "--variant=apt", f"--include={packages}", release, partial, sources]
        if subprocess.run([str(word) for word in command], check=False).returncode:
            pytest.skip(f"mmdebstrap could make no Debian {release}, see above, so no institution is booted")
        partial.rename(tar)
    return tar


def _unpacked(tar: Path, root: Path) -> Path:
    if not (root / "complete").exists():
        _unpack(tar, root)
        (root / "complete").touch()
    return root


def _unpack(tar: Path, root: Path) -> None:
    root.mkdir()
    subprocess.run(["tar", "-C", root, "-xf", tar], check=True)


def _repack(package: Path, newer: Path) -> None:
    """The same package under the number of its next revision, for an upgrade: other control files before the same data.
    A package is an archive of `ar`: eight bytes, then a header of sixty bytes before each of the members debian-binary,
    control.tar and data.tar (deb(5)). Packing the data again would take minutes."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "--control", package, folder], check=True)
        for name in ("control", "preinst"):
            script = Path(folder, name)
            script.write_text(re.sub(r"(\d\.\d\.\d)-1\b", r"\1-2", script.read_text()))
        command = ["tar", "-C", folder, "--owner=root:0", "--group=root:0", "-c", "."]
        control = subprocess.run(command, check=True, capture_output=True).stdout
    with package.open("rb") as old, newer.open("wb") as new:
        new.write(old.read(8 + 60 + len(b"2.0\n")))
        header = old.read(60)
        size = int(header[48:58])
        old.seek(size + size % 2, os.SEEK_CUR)
        new.write(b"control.tar".ljust(16) + header[16:48] + b"%-10d" % len(control) + header[58:] + control)
        shutil.copyfileobj(old, new, 1 << 20)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for found in path.rglob("*"):
        if found.is_file() and "__pycache__" not in found.parts:
            yield found
