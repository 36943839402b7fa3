"""A web page elsewhere that reads the metrics port."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import host.local_metrics
from deploy.quickstart.ports import free_port
from host.local_metrics import serving_metrics
from tests.hostile.attack import Attack, in_copy


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
