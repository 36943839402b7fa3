"""The table of rooms: who may import whom, and the proof that no process has both network and patients."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from tests.house.imports import (
    HOUSE,
    ROOMS,
    Imported,
    all_imports,
    imports_of,
    is_command_line,
    modules,
    outside_packages,
    reachable,
)

HEAVY = ("torch", "pandas", "sklearn")
NETWORK = "grpc"
# Modules of Python itself that open connections.
SOCKETS = {"socket", "socketserver", "ssl", "http", "urllib", "ftplib", "smtplib", "telnetlib", "xmlrpc", "poplib"}


@dataclass(frozen=True)
class Room:
    """One row of the house's table."""

    prefix: str
    packages: frozenset[str]
    rooms: tuple[str, ...]


# The files that every process of a site reads.
BOTH = (
    "site_agent.trainer_socket",
    "site_agent.framed_messages",
    "site_agent.hospital",
    "site_agent.approvals",
    "site_agent.approvals_guard",
    "site_agent.state_folders",
)
PATIENTS = frozenset(
    {
        "torch",
        "torchvision",
        "pandas",
        "sklearn",
        "threadpoolctl",
        "safetensors",
        "numpy",
        "structlog",
        "pydantic",
        "click",
        "sqlalchemy",
        "pyarrow",
        "openpyxl",
        "PIL",
        "nibabel",
        "pydicom",
        "onnx",
        "onnxruntime",
        "blake3",
        "sdnotify",
    }
)
TABLE = (
    Room(
        "protos",
        frozenset({"numpy", "dp_accounting", "google", "cryptography", "yaml", "pydantic", "blake3"}),
        ("protos",),
    ),
    Room(
        "host",
        frozenset({"click", "structlog", "cryptography", "yaml", "pydantic", "numpy", "safetensors", "rich"}),
        ("host", "protos"),
    ),
    Room("audit", frozenset({"click", "cryptography", "blake3", "pydantic"}), ("audit", "host", "protos")),
    Room("pki", frozenset({"cryptography", "click"}), ("pki", "audit", "host", "protos")),
    Room(
        "coordinator",
        frozenset(
            {
                "numpy",
                "grpc",
                "structlog",
                "click",
                "rich",
                "yaml",
                "pydantic",
                "safetensors",
                "sdnotify",
                "prometheus_client",
                "jinja2",
            }
        ),
        ("coordinator", "pki", "audit", "host", "protos"),
    ),
    Room(
        "site_agent.agent",
        frozenset({"cryptography", "click", "grpc", "sdnotify"}),
        (
            "site_agent.agent",
            "site_agent.gate_socket",
            "site_agent.framed_messages",
            "site_agent.hospital",
            "site_agent.state_folders",
            "pki",
            "host",
            "protos",
        ),
    ),
    Room(
        "site_agent.gate",
        frozenset({"numpy", "cryptography", "structlog", "blake3"}),
        (
            "site_agent.gate",
            "site_agent.gate_socket",
            "site_agent.site_standing",
            *BOTH,
            "pki",
            "audit",
            "host",
            "protos",
        ),
    ),
    # Starts the gate and shows its status. The gate imports nothing of it, and it handles no number of a model.
    Room(
        "site_agent.service",
        frozenset({"cryptography", "structlog", "sdnotify", "prometheus_client", "jinja2"}),
        (
            "site_agent.service",
            "site_agent.gate",
            "site_agent.gate_socket",
            "site_agent.site_standing",
            *BOTH,
            "pki",
            "audit",
            "host",
            "protos",
        ),
    ),
    Room("site_agent.trainer", PATIENTS, ("site_agent.trainer", "site_agent.site_events", *BOTH, "host", "protos")),
    # The program gives the worker the desk's functions for the time before the first round and after the last one.
    Room(
        "site_agent.trainer.__main__",
        PATIENTS,
        ("site_agent.trainer", "site_agent.desk.around_rounds", "site_agent.site_events", *BOTH, "host", "protos"),
    ),
    Room(
        "site_agent.desk",
        PATIENTS | {"jinja2"},
        (
            "site_agent.desk",
            "site_agent.trainer",
            "site_agent.desk.sets_of_plans",
            "site_agent.approving",
            "audit",
            *BOTH,
            "host",
            "protos",
        ),
    ),
    # It has only pages. Its content and actions come from commands, which it runs as separate processes.
    Room(
        "site_agent.console",
        frozenset(),
        (
            "site_agent.console",
            "site_agent.gate.policy",  # pure: whether the hospital's own file allows a plan
            "site_agent.hospital",
            "site_agent.approvals",
            "site_agent.approving",
            "site_agent.state_folders",
            "host",
            "protos",
        ),
    ),
    Room(
        "site_agent.console.console_command",
        frozenset({"click"}),
        ("site_agent.console", "site_agent.commands", "site_agent.hospital", "host", "protos"),
    ),
    Room(
        "site_agent",
        frozenset({"click", "rich", "yaml", "pydantic", "structlog"}),
        ("site_agent", "pki", "audit", "host", "protos"),
    ),
    # The researcher's door: both programs' mathematics in one process. Nothing that a hospital runs imports it.
    Room(
        "global_layers",
        frozenset({"numpy", "pandas", "sklearn"}),
        ("global_layers", "coordinator.rounds", "site_agent", "protos"),
    ),
)
# The only files that may import their neighbours in the folder.
ONE_PLACE = {
    "grpc": {"coordinator.network.service", "site_agent.agent.connection"},
    "google": {"protos.wire.codec", "protos.wire.generated.federation_pb2"},
    "protos.wire.generated": {"protos.wire.codec"},
    "protos.wire.generated.federation_pb2": {"protos.wire.codec"},
}
# The files that may open a socket. Gate socket and trainer socket are pairs, or Unix sockets, between processes of one
# site. A doctor checks who answers at an address with host.address_checks.
SOCKET_FILES = {
    "site_agent.framed_messages",
    "site_agent.trainer_socket",
    "site_agent.agent.__main__",
    "site_agent.gate.agent_link",
    "site_agent.service.neighbours",
    "site_agent.trainer.__main__",
    "site_agent.gate.dry_run",
    "host.address_checks",
}


def room_of(module: str) -> Room:
    """The row of the table for a module; the longest prefix wins."""
    return max((room for room in TABLE if is_in(module, room.prefix)), key=lambda room: len(room.prefix))


def is_in(module: str, prefix: str) -> bool:
    """Whether a module is this one or inside it."""
    return module == prefix or module.startswith(prefix + ".")


def breach(found: Imported) -> str | None:
    """Return why an import breaks the table, or None."""
    room = room_of(found.importer)
    if found.package in ROOMS:
        allowed = any(is_in(found.imported, prefix) for prefix in room.rooms)
    else:
        allowed = found.package in sys.stdlib_module_names or found.package in room.packages
    return None if allowed else f"{found} from the room {room.prefix}"


def test_imports_point_downwards() -> None:
    """A module imports only its own room, the floors below and the packages of its row."""
    breaches = [breach(found) for found in all_imports()]

    assert len(breaches) > 1000
    assert [text for text in breaches if text] == []


def test_the_table_finds_a_breach() -> None:
    """Each import that the house forbids is found, also inside a function."""
    forbidden = (
        ("protos.plan.plan", "import grpc"),
        ("protos.plan.plan", "from torch import nn"),
        ("protos.plan.plan", "import coordinator.rounds.round"),
        ("pki.store", "import numpy"),
        ("pki.store", "from site_agent import config"),
        ("coordinator.rounds.round", "import site_agent.trainer_socket"),
        ("protos.plan.server_rules", "def f():\n    import torch"),
        ("site_agent.gate.door", "import site_agent.trainer.worker"),
        ("site_agent.gate.door", "import pandas"),
        ("site_agent.gate.loop", "import site_agent.service.joining"),
        ("site_agent.gate.consent", "from site_agent.approving import approve"),
        ("site_agent.trainer.worker", "from site_agent.approving import approve"),
        ("site_agent.trainer.worker", "from site_agent.gate import gate"),
        ("site_agent.trainer.worker", "import grpc.aio"),
        ("site_agent.trainer.worker", "from site_agent.desk import around_rounds"),
        ("site_agent.trainer.worker", "from pki import store"),
        ("site_agent.hospital", "import torch"),
    )
    missed = [
        f"{importer}: {text}"
        for importer, text in forbidden
        if len([found for found in imports_of(importer, text) if breach(found)]) != 1
    ]

    assert missed == []


def test_what_has_one_place_is_imported_nowhere_else() -> None:
    """Only one file on each side imports the network, and only the two wire files import generated messages."""
    for imported, places in ONE_PLACE.items():
        importers = {found.importer for found in all_imports() if is_in(found.imported, imported)}

        assert importers, imported
        assert importers <= places | {"protos.wire.generated"}, imported


def test_no_file_opens_a_socket_of_its_own() -> None:
    """Besides gRPC's two files, only the trainer socket's ends and the doctor's check of an address use sockets."""
    # Taking an address apart opens nothing.
    connecting = [found for found in all_imports() if found.package in SOCKETS and found.imported != "urllib.parse"]
    importers = {found.importer for found in connecting}

    assert importers <= SOCKET_FILES


def test_lazy_imports_stand_where_they_keep_a_process_small() -> None:
    """Only command lines and the trainer, which loads torch late, import inside functions."""
    importers = {found.importer for found in all_imports() if found.is_lazy and found.package in (*ROOMS, *HEAVY)}

    assert {
        name
        for name in importers
        if not is_command_line(name) and not is_in(name, "site_agent.trainer") and not is_in(name, "site_agent.desk")
    } == set()


def entry_points() -> dict[str, frozenset[str]]:
    """Return everything that a process may load: each module, and each command with the imports inside it."""
    entries = {name: reachable(name, lazily=True) for name in modules()}
    for found in all_imports():
        if found.is_lazy and is_command_line(found.importer):
            key = f"{found.importer}:{found.function}"
            entries[key] = entries.get(key, entries[found.importer]) | reachable(found.imported, lazily=True)
    return entries


def has_network(names: frozenset[str]) -> bool:
    """Whether these modules bring in gRPC."""
    return NETWORK in outside_packages(names, lazily=True)


def has_patients(names: frozenset[str]) -> bool:
    """Whether these modules bring in the patients' tables, or a library that is only there for them."""
    is_heavy = bool(set(HEAVY) & outside_packages(names, lazily=True))
    return is_heavy or any(is_in(name, "site_agent.trainer.data") for name in names)


def test_no_process_reaches_both_network_and_patients() -> None:
    """No module and no command can import both gRPC and the patients' tables."""
    entries = entry_points()

    assert [entry for entry, names in entries.items() if has_network(names) and has_patients(names)] == []
    # The search finds both sides, so the rule above is able to fail.
    assert has_network(entries["site_agent.agent.__main__"])
    assert not has_network(entries["site_agent.service.joining"])
    assert not has_network(entries["site_agent.site_cli:join"])
    assert has_network(entries["coordinator.serve"])
    assert has_patients(entries["site_agent.trainer.study"])
    assert has_patients(entries["site_agent.site_cli:check"])
    assert has_patients(entries["site_agent.commands.model_commands:predict"])
    assert has_patients(entries["site_agent.trainer.__main__"])
    assert not any(is_in(name, "site_agent.desk") for name in entries["site_agent.trainer.worker"])
    assert not has_network(entries["site_agent.site_cli"])
    assert not has_patients(entries["site_agent.site_cli"])
    assert not any(has_patients(names) for name, names in entries.items() if is_in(name, "site_agent.console"))


def test_no_module_is_imported_in_a_circle() -> None:
    """Each module can be read after those that it imports."""
    edges = [(found.importer, found.imported) for found in all_imports() if not found.is_lazy]

    assert [edge for edge in edges if edge[0] in reachable(edge[1])] == []


BLOCKER = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(name + " cannot be loaded here")

sys.meta_path.insert(0, Blocker())
"""


def run(program: str, blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """A program in a fresh interpreter where these packages cannot be imported."""
    text = BLOCKER.replace("{blocked}", repr(set(blocked))) + program
    return subprocess.run([sys.executable, "-c", text], cwd=HOUSE, capture_output=True, text=True, check=False)


def imports(names: list[str]) -> str:
    """A program that imports these modules."""
    return "\n".join(f"import {name}" for name in names)


WITHOUT_PATIENTS = [
    "site_agent.agent.__main__",
    "coordinator.coordinator_cli",
    "coordinator.serve",
    "pki.pki_cli",
    "site_agent.site_cli",
    "site_agent.service.joining",
    "site_agent.gate.loop",
]
WITHOUT_NETWORK = [
    "site_agent.trainer.worker",
    "site_agent.trainer.study",
    "site_agent.desk.results.run_report",
    "site_agent.desk.prediction",
    "site_agent.trainer.__main__",
    "site_agent.service.joining",
    "site_agent.site_cli",
]


def test_the_network_side_starts_without_torch_and_pandas() -> None:
    """Coordinator, agent and gate start in an interpreter where torch, pandas and sklearn cannot be loaded."""
    done = run(f"{imports(WITHOUT_PATIENTS)}\nassert not {set(HEAVY)!r} & set(sys.modules)", HEAVY)

    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # by default the imports of its files show it
def test_the_patients_side_starts_without_grpc() -> None:
    """The trainer starts in an interpreter where gRPC and the coordinator cannot be loaded."""
    blocked = (NETWORK, "grpc_status", "coordinator")
    done = run(f"{imports(WITHOUT_NETWORK)}\nassert 'grpc' not in sys.modules", blocked)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "modules",
    [
        ["coordinator.__main__", "coordinator.serve"],
        ["site_agent.__main__", "site_agent.service.joining"],
        ["site_agent.agent.__main__"],
        ["site_agent.trainer.__main__", "site_agent.trainer.worker"],
    ],
    ids=["coordinator", "gate", "agent", "trainer"],
)
def test_the_services_start_without_rich(modules: list[str]) -> None:
    """Each program alone does not load rich, which only draws on a terminal."""
    done = run(f"import sys\n{imports(modules)}\nassert 'rich' not in sys.modules", ())

    assert done.returncode == 0, done.stderr


def test_the_blocked_interpreter_does_block() -> None:
    """A blocked package cannot be imported, so the two tests above are able to fail."""
    for package in (*HEAVY, NETWORK):
        done = run(f"import {package}", (*HEAVY, NETWORK))

        assert done.returncode != 0, package
        assert f"{package} cannot be loaded here" in done.stderr, package
