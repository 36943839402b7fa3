"""Booted systems: one real systemd for each institution, with a network namespace and an address of its own. All share
one root file system, each with a layer of its own above it. Everything that is created here is removed again, and
nothing else. It needs root, and changes nothing of the host's network."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROGRAMS: Final = ("systemd-nspawn", "ip", "nsenter", "unshare", "mmdebstrap", "dpkg-deb")
CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
BOOT_SECONDS: Final = 120.0
# Long enough for a busy computer; a working test never waits this long.
PATIENCE_SECONDS: Final = 240.0
FREE_BYTES: Final = 10 << 30
# The limit of the machines' files, which are in memory: two of the machines install a package of 1.2 GB.
MEMORY_BYTES: Final = 6 << 30
PROCESSES_BYTES: Final = 4 << 30
# All that has to be allowed: layers, hierarchies of control groups, namespaces and pairs of network devices.
_TRY: Final = """
cd "$1"
mkdir lower upper work root groups
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work root
mount -t cgroup2 none groups
mkdir groups/try-institutions
rmdir groups/try-institutions
ip link add try0 type veth peer name try1
"""
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
    """Return why no system can be booted here; empty if it can."""
    if os.geteuid() != 0:
        return "booting institutions needs root"
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return "these tests follow one another; run them in one process, with --numprocesses 0"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        packages = "systemd-container iproute2 util-linux mmdebstrap dpkg"
        return f"{', '.join(missing)} not installed (Debian: apt install {packages})"
    available = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    if available and int(available[1]) << 10 < MEMORY_BYTES + PROCESSES_BYTES:
        return f"less than {(MEMORY_BYTES + PROCESSES_BYTES) >> 30} GB of memory are free"
    with tempfile.TemporaryDirectory() as folder:
        if shutil.disk_usage(folder).free < FREE_BYTES:
            return f"less than {FREE_BYTES >> 30} GB are free for temporary files"
        tried = subprocess.run(
            ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-euc", _TRY, "try", folder],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    return f"this computer does not let root: {tried.stderr.strip()[-200:]}" if tried.returncode else ""


@dataclass
class Machine:
    """One booted system, with its host name and its only address beside loopback. On the host: its root file system,
    the container's own process, and its group of processes."""

    name: str
    address: str
    root: Path
    process: subprocess.Popen[bytes]
    group: str

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
        """Return all log lines of a unit in this boot."""
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
    """Systems on one bridge. Use as a context; leaving it ends them and removes what was made.

    Attributes:
        machines: those that run, by name.
    """

    def __init__(
        self,
        base: Callable[[str], Path],
        work: Path,
        *,
        prepare: Callable[[Path, str], None],
        further_names: Mapping[str, str],
        arguments: Callable[[str], list[str]] = lambda _: [],
    ) -> None:
        """Set the place up in an empty folder `work`; what machines write is kept in memory above it. Machines share
        the root file system `base`, which `prepare` changes before a boot. `arguments` are added."""
        self._base, self._work, self._prepare = base, work, prepare
        self._further_names, self._arguments = further_names, arguments
        self._hub = f"{work.name}-{os.getpid()}"
        self._stack = ExitStack()
        self.machines: dict[str, Machine] = {}

    def __enter__(self) -> Institutions:
        _call("mount", "-t", "tmpfs", "-o", f"size={MEMORY_BYTES},mode=0755", "institutions", self._work)
        self._stack.callback(_call, "umount", self._work)
        _call("ip", "netns", "add", self._hub)
        self._stack.callback(_call, "ip", "netns", "del", self._hub)
        _call("ip", "-n", self._hub, "link", "add", "bridge0", "type", "bridge")
        _call("ip", "-n", self._hub, "link", "set", "bridge0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines.values():
            _power_off(machine)
        self._stack.close()

    def boot(self, *names: str) -> None:
        """Boot systems of these names, all at once."""
        first = len(self.machines) + 1
        addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, start=first)}
        for name, address in addresses.items():
            self._connect(name, address)
        known = {machine.name: machine.address for machine in self.machines.values()} | addresses
        for name, address in addresses.items():
            self.machines[name] = self._start(name, address, self.hosts(known))
        for name in names:
            wait_until(self.machines[name].is_up, f"{name} has booted", seconds=BOOT_SECONDS)

    def replace(self, name: str) -> Machine:
        """A computer is lost with all its data. Another one gets its name and address, newly installed."""
        lost = self.machines[name]
        os.kill(lost.leader(), signal.SIGKILL)  # its first process, and with that all others
        os.killpg(lost.process.pid, signal.SIGKILL)
        lost.process.wait()
        wait_until(lambda: not _has_processes(lost.group), f"{name} is gone", seconds=BOOT_SECONDS)
        known = {machine.name: machine.address for machine in self.machines.values()}
        self.machines[name] = self._start(name, lost.address, self.hosts(known), group=f"{lost.group}-again")
        wait_until(self.machines[name].is_up, f"the new {name} has booted", seconds=BOOT_SECONDS)
        return self.machines[name]

    def hosts(self, addresses: Mapping[str, str], further_names: Mapping[str, str] | None = None) -> str:
        """The content of /etc/hosts on all machines."""
        further = self._further_names if further_names is None else further_names
        lines = (f"{address} {name} {further.get(name, '')}\n" for name, address in addresses.items())
        return "127.0.0.1 localhost\n" + "".join(lines)

    def _layer(self, folder: Path, base: Path) -> Path:
        for part in ("upper", "work", "root"):
            (folder / part).mkdir(parents=True)
        # Names of files change without their contents being copied up: dpkg links each old file before it is replaced.
        options = f"lowerdir={base},upperdir={folder / 'upper'},workdir={folder / 'work'},metacopy=on"
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

    def _start(self, name: str, address: str, hosts: str, *, group: str = "") -> Machine:
        space = f"{self._hub}-{name}"
        group = group or space
        root = self._layer(self._work / group, self._base(name))
        (root / "etc/hostname").write_text(f"{name}\n")
        (root / "etc/hosts").write_text(hosts)
        self._prepare(root, name)
        self._stack.callback(_remove_groups, group)
        command = [
            "unshare", "--mount", "--propagation", "private", "bash", "-c", _BOOT, "boot", group,
            "systemd-nspawn", "--quiet", "--directory", root, "--boot", "--hostname", name, "--machine", group,
            "--register=no", "--keep-unit", f"--network-namespace-path=/run/netns/{space}", "--link-journal=no",
            "--console=pipe", "--capability=CAP_NET_ADMIN,CAP_BPF", "--system-call-filter=bpf",
            "--resolv-conf=off", "--timezone=off", *self._arguments(name),
        ]  # fmt: skip
        with (root.parent / "console").open("wb") as console:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True
            )
        return Machine(name, address, root, process, group)


def wait_until(is_so: Callable[[], bool], what: str, *, seconds: float = PATIENCE_SECONDS) -> float:
    """Wait until a condition is true. Return the seconds that it took. Fails if it does not become true."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)
    return time.monotonic() - began


def _power_off(machine: Machine) -> None:
    """Act like a power button. A process that does not end by itself is killed."""
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


def _group(name: str) -> Path:
    unified = CONTROL_GROUPS / "unified"
    return (unified if unified.is_dir() else CONTROL_GROUPS) / name


def _has_processes(name: str) -> bool:
    events = _group(name) / "cgroup.events"
    return events.exists() and "populated 1" in events.read_text()


def _remove_groups(name: str) -> None:
    top = _group(name)
    for folder in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
        folder.rmdir()
    if top.is_dir():
        top.rmdir()


def _call(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)
