"""An export from an attacker who wants to run code at the reader's, and a web page that reads the metrics port.

A folder of an export is passed from hand to hand. Whoever changes model.json can name any file in it, also a file that
lies elsewhere, with its right SHA-256.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import host.local_metrics
from deploy.quickstart.ports import free_port
from host.local_metrics import serving_metrics
from site_agent.desk.export import loader
from tests.hostile.attack import Attack, in_copy, scratch

CODE = b"""
import pathlib, torch
def build(columns, outputs):
    pathlib.Path({ran!r}).touch()
    return torch.nn.Identity()
"""


def an_export(folder: Path, file: str, source: bytes) -> None:
    """An export without a tensor, whose network is said to be in a file."""
    said = {"file": file, "sha256": hashlib.sha256(source).hexdigest(), "columns": 1, "outputs": 1}
    (folder / "model.json").write_text(json.dumps({"module": said, "operations": [], "result": "values"}))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


def named_elsewhere(folder: Path, export: Path, code: Path) -> str:
    """The name of a file outside, by its whole path."""
    return str(code)


def named_above(folder: Path, export: Path, code: Path) -> str:
    """The name of a file outside, from the folder upwards."""
    return f"../{code.name}"


def linked(folder: Path, export: Path, code: Path) -> str:
    """The name of a link in the folder that leads outside."""
    (export / "own_network.py").symlink_to(code)
    return "own_network.py"


@contextmanager
def without_the_folder() -> Iterator[None]:
    """The loader opens whatever path model.json names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "_content", lambda folder, name: (Path(folder) / name).read_bytes())
        yield


@contextmanager
def without_asking() -> Iterator[None]:
    """The loader runs code for every caller."""
    honest = loader.load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "load", lambda folder, *, allow_code=True: honest(folder, allow_code=True))
        yield


def _is_run(export: Path, ran: Path, **allowed: bool) -> bool:
    with suppress(ValueError, KeyError):  # refused; or the code has run, and the rest of the export is missing
        loader.load(export, **allowed)
    return ran.exists()


def code_from_elsewhere(weakened: bool, place: Callable[[Path, Path, Path], str]) -> bool:
    """Have a reader who allows the export's code run a file that is not in the export's folder."""
    with scratch() as folder, in_copy(weakened, without_the_folder):
        ran, export, code = folder / "ran", folder / "export", folder / "elsewhere.py"
        export.mkdir()
        code.write_bytes(CODE.replace(b"{ran!r}", repr(str(ran)).encode()))
        an_export(export, place(folder, export, code), code.read_bytes())
        return _is_run(export, ran, allow_code=True)


def code_that_nobody_allowed(weakened: bool) -> bool:
    """Have a reader who only loads a model run the code in its folder."""
    with scratch() as folder, in_copy(weakened, without_asking):
        ran, source = folder / "ran", CODE.replace(b"{ran!r}", repr(str(folder / "ran")).encode())
        (folder / "own_network.py").write_bytes(source)
        an_export(folder, "own_network.py", source)
        return _is_run(folder, ran)


class _Released(Collector):
    """One metric, by which the attacker sees that it was answered."""

    def collect(self) -> Iterator[Metric]:
        """Yield it."""
        yield GaugeMetricFamily("bytes_released", "Bytes.", 7.0)


async def _asked(request: bytes) -> bytes:
    port = free_port()
    async with serving_metrics(f"127.0.0.1:{port}", _Released(), consequence="None.", file="hospital.yaml"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
    return answer


def rebound_metrics(weakened: bool, hosts: tuple[bytes, ...]) -> bool:
    """Read the metrics from a web page whose name points at this computer now."""
    fields = b"".join(b"Host: " + name + b"\r\n" for name in hosts)

    def without_hosts() -> Any:
        patch = pytest.MonkeyPatch()
        patch.setattr(host.local_metrics, "is_local_host", lambda name: True)
        return _undone(patch)

    with in_copy(weakened, without_hosts):
        return b"bytes_released" in asyncio.run(_asked(b"GET /metrics HTTP/1.1\r\n" + fields + b"\r\n"))


@contextmanager
def _undone(patch: pytest.MonkeyPatch) -> Iterator[None]:
    try:
        yield
    finally:
        patch.undo()


ATTACKS = (
    *(
        Attack(
            name=f"export-with-{name}",
            tries=f"an export names its code by {words}, and code outside of the folder runs",
            without="the check that a file lies in the folder",
            run=partial(code_from_elsewhere, place=place),
        )
        for name, words, place in (
            ("a-whole-path", "a whole path", named_elsewhere),
            ("a-path-upwards", "a path upwards", named_above),
            ("a-link", "a link", linked),
        )
    ),
    Attack(
        name="export-with-code-that-nobody-allowed",
        tries="an export's own code runs at whoever only loads the model",
        without="the question whether code may run",
        run=code_that_nobody_allowed,
    ),
    *(
        Attack(
            name=f"dns-rebinding-metrics-{name}",
            tries="a web page elsewhere, whose name now points here, reads the metrics port",
            without="the check of the host's name",
            run=partial(rebound_metrics, hosts=hosts),
        )
        for name, hosts in (
            ("by-name", (b"evil.example.org:9100",)),
            ("by-two-names", (b"localhost", b"evil.example.org")),
        )
    ),
)
