"""Booted systems: one real systemd for each institution, with a network namespace and an address of its own.

All share one root file system, each with a layer of its own above it. What is made here, and nothing else, is
taken away again. It needs root, and changes nothing of the host's network.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROGRAMS: Final = ("systemd-nspawn", "ip", "nsenter", "unshare", "mmdebstrap", "dpkg-deb")
CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
BOOT_SECONDS: Final = 60.0
# Gives the container a pure hierarchy of control groups, also where the host still has the old ones.
_BOOT: Final = """
if [ "$(stat -fc %T /sys/fs/cgroup)" != cgroup2fs ]; then
    umount -R /sys/fs/cgroup
    mount -t cgroup2 none /sys/fs/cgroup
fi
group="/sys/fs/cgroup/$1"
shift
boot=0
# 133 is how a container that reboots asks to be started again. Each boot has a group of its own, without this shell: a
# group that has processes gives no controllers to the groups below it.
while :; do
    boot=$((boot + 1))
    mkdir -p "$group/$boot"
    status=0
    (echo "$BASHPID" >"$group/$boot/cgroup.procs" && exec "$@") || status=$?
    [ "$status" = 133 ] || exit "$status"
done
"""


def why_not() -> str:
    """Why no system can be booted here; empty where it can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.geteuid() != 0:
        return "booting institutions needs root"
    if missing:
        packages = "systemd-container iproute2 util-linux mmdebstrap dpkg"
        return f"{', '.join(missing)} not installed (Debian: apt install {packages})"
    return ""


@dataclass
class Machine:
    """One booted system.

    Attributes:
        name: its host name.
        address: its only address beside loopback.
        root: its root file system, as the host sees it.
        process: the container's own process on the host.
    """

    name: str
    address: str
    root: Path
    process: subprocess.Popen[bytes]

    def run(self, *words: object, user: str = "root", may_fail: bool = False, seconds: float = 60.0) -> str:
        """Run a command inside to its end, and give back what it printed on both channels."""
        command = [*self._inside(), "--", *(("runuser", "-u", user, "--") if user != "root" else ()), *map(str, words)]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=seconds
        )
        if done.returncode and not may_fail:
            raise AssertionError(
                f"{self.name}: {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}"
            )
        return done.stdout.strip()

    def place(self, path: str, content: bytes, *, owner: str = "root:root", mode: str = "0644") -> None:
        """Put a file into the running system, as a person would with `install`."""
        user, group = owner.split(":")
        command = [*self._inside(), "--", "install", "-D", "-o", user, "-g", group, "-m", mode, "/dev/stdin", path]
        subprocess.run(command, input=content, check=True, timeout=30)

    def property(self, unit: str, name: str) -> str:
        """One property of a unit, as systemd tells it."""
        return self.run("systemctl", "show", "--property", name, "--value", unit)

    def journal(self, unit: str) -> str:
        """All that a unit has said in this boot."""
        return self.run("journalctl", "--no-pager", "--output", "cat", "--boot", "--unit", unit)

    def is_up(self) -> bool:
        """Whether it has finished booting."""
        try:
            return self.run("systemctl", "is-system-running", may_fail=True) in ("running", "degraded")
        except AssertionError:
            return False

    def leader(self) -> int:
        """The process identifier, on the host, of the first process inside."""
        for container in _children(self.process.pid):
            for first in _children(container):
                return first
        raise AssertionError(f"{self.name} is not running")

    def _inside(self) -> list[str]:
        return ["nsenter", "-t", str(self.leader()), "-m", "-u", "-i", "-n", "-p", "-C"]


class Institutions:
    """Systems on one bridge. Use as a context; leaving it ends them and removes what was made."""

    def __init__(self, base: Path, work: Path, *, arguments: Callable[[str], list[str]] = lambda _: []) -> None:
        """`base` is the shared root file system, `work` an empty folder, `arguments` adds to a container's own."""
        self._base, self._work, self._arguments = base, work, arguments
        self._hub = f"hub{os.getpid()}"
        self._stack = ExitStack()
        self.machines: dict[str, Machine] = {}

    def __enter__(self) -> Institutions:
        _call("ip", "netns", "add", self._hub)
        self._stack.callback(_call, "ip", "netns", "del", self._hub)
        _call("ip", "-n", self._hub, "link", "add", "bridge0", "type", "bridge")
        _call("ip", "-n", self._hub, "link", "set", "bridge0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines.values():
            _power_off(machine)
        self._stack.close()

    def boot(
        self, names: list[str], prepare: Callable[[Path, str], None], further_names: Mapping[str, str]
    ) -> dict[str, Machine]:
        """Boot systems of these names; `prepare` changes a root file system before."""
        addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, start=1)}
        hosts = "".join(f"{address} {name} {further_names.get(name, '')}\n" for name, address in addresses.items())
        for name, address in addresses.items():
            root = self._layer(name)
            (root / "etc/hostname").write_text(f"{name}\n")
            (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
            prepare(root, name)
            self._connect(name, address)
            self.machines[name] = Machine(name, address, root, self._start(name, root))
        for machine in self.machines.values():
            wait_until(machine.is_up, f"{machine.name} has booted", seconds=BOOT_SECONDS)
        return self.machines

    def _layer(self, name: str) -> Path:
        folder = self._work / name
        for part in ("upper", "work", "root"):
            (folder / part).mkdir(parents=True)
        options = f"lowerdir={self._base},upperdir={folder / 'upper'},workdir={folder / 'work'}"
        _call("mount", "-t", "overlay", "overlay", "-o", options, folder / "root")
        self._stack.callback(_call, "umount", folder / "root")
        return folder / "root"

    def _connect(self, name: str, address: str) -> None:
        space = f"{self._hub}-{name}"
        port = f"port{address.rsplit('.', 1)[1]}"
        _call("ip", "netns", "add", space)
        self._stack.callback(_call, "ip", "netns", "del", space)
        _call("ip", "-n", space, "link", "set", "lo", "up")
        _call("ip", "-n", space, "link", "add", "host0", "type", "veth", "peer", "name", port, "netns", self._hub)
        _call("ip", "-n", self._hub, "link", "set", port, "master", "bridge0", "up")
        _call("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "host0")
        _call("ip", "-n", space, "link", "set", "host0", "up")

    def _start(self, name: str, root: Path) -> subprocess.Popen[bytes]:
        group = f"{self._hub}-{name}"
        self._stack.callback(_remove_groups, group)
        command = [
            "unshare", "--mount", "--propagation", "private", "bash", "-c", _BOOT, "boot", group,
            "systemd-nspawn", "--quiet", "--directory", root, "--boot", "--hostname", name, "--machine", group,
            "--register=no", "--keep-unit", f"--network-namespace-path=/run/netns/{group}", "--link-journal=no",
            "--console=pipe", "--capability=CAP_NET_ADMIN,CAP_BPF", "--system-call-filter=bpf",
            "--resolv-conf=off", "--timezone=off", *self._arguments(name),
        ]  # fmt: skip
        with (self._work / name / "console").open("wb") as console:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True
            )


def wait_until(is_so: Callable[[], bool], what: str, *, seconds: float) -> float:
    """Wait for something to become so; how many seconds it took. Fails when it does not."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)
    return time.monotonic() - began


def _power_off(machine: Machine) -> None:
    """As a power button would; what does not end by itself is ended."""
    with suppress(AssertionError, ProcessLookupError):
        os.kill(machine.leader(), signal.SIGRTMIN + 4)
    try:
        machine.process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(machine.process.pid, signal.SIGKILL)
        machine.process.wait()


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _remove_groups(name: str) -> None:
    unified = CONTROL_GROUPS / "unified"
    top = (unified if unified.is_dir() else CONTROL_GROUPS) / name
    for folder in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
        folder.rmdir()
    if top.is_dir():
        top.rmdir()


def _call(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)
