"""Chunks on a real Ray and a real Dask cluster: the numbers equal those of one process, to the last bit."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from benchmarks.experiments.chunks import Chunk, Computed, Refused
from benchmarks.experiments.engines import Cores, DaskCluster, RayCluster, compute, engine_of
from benchmarks.experiments.tables.rehearsal import METHODS
from benchmarks.experiments.variants import Row
from protos.errors import UnavailableError, UsageError

CHECKOUT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize(
    ("jobs", "cluster", "engine"),
    [
        (1, "", Cores(1)),
        (2, "", Cores(2)),
        (1, "ray://head:10001", RayCluster("head:10001")),
        (1, "dask://10.0.0.1:8786", DaskCluster("10.0.0.1:8786")),
    ],
)
def test_a_cluster_is_named_by_its_kind_and_address(jobs: int, cluster: str, engine: object) -> None:
    """Without a cluster, the cores of this machine compute."""
    assert engine_of(jobs, cluster) == engine


@pytest.mark.parametrize("cluster", ["spark://head:7077", "ray://head", "dask://:8786", "ray://", "head:10001"])
def test_another_name_of_a_cluster_is_refused(cluster: str) -> None:
    """The error shows both forms."""
    with pytest.raises(UsageError, match=r"ray://HOST:10001 or dask://HOST:8786"):
        engine_of(1, cluster)


@pytest.mark.slow
def test_two_processes_compute_what_one_computes() -> None:
    """Every row of every seed is equal to the last bit, and an error is explained in words."""
    assert rows_by(Cores(2), chunks()) == rows_by(Cores(1), chunks())

    without_tables = Chunk(table="heart", variant="local, authors", folder=CHECKOUT / "tests", seeds=(0,))
    (refused,) = compute(Cores(2), [without_tables])
    assert isinstance(refused, Refused)
    assert "Give the folder that holds heart/" in refused.words


@pytest.mark.slow
def test_a_ray_cluster_computes_what_one_process_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes of a real Ray return every row equal to the last bit.

    After one failure of Ray the start is repeated.
    """
    ray = pytest.importorskip("ray", reason="the package ray is not installed (extra: cluster)")
    init, fails = ray.init, iter([True])

    def failing_once(*arguments: object, **keywords: object) -> object:
        if next(fails, False):
            raise ConnectionAbortedError
        return init(*arguments, **keywords)

    monkeypatch.setattr(ray, "init", failing_once)
    with ray_cluster() as engine:
        assert rows_by(engine, chunks()) == rows_by(Cores(1), chunks())


@pytest.mark.slow
def test_a_dask_cluster_computes_what_one_process_computes() -> None:
    """Two workers of a real Dask return every row equal to the last bit."""
    pytest.importorskip("distributed", reason="the package distributed is not installed (extra: cluster)")
    with dask_cluster(threads=1) as engine:
        assert rows_by(engine, chunks()) == rows_by(Cores(1), chunks())


@pytest.mark.slow
def test_dask_workers_with_several_threads_are_refused() -> None:
    """Two chunks in a process would share torch's generator, so nothing is computed."""
    pytest.importorskip("distributed", reason="the package distributed is not installed (extra: cluster)")
    with dask_cluster(threads=2) as engine, pytest.raises(UsageError, match="--nthreads 1"):
        list(compute(engine, chunks()))


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_reported() -> None:
    """Nothing is computed instead."""
    pytest.importorskip("distributed", reason="the package distributed is not installed (extra: cluster)")
    with pytest.raises(UnavailableError, match="does not answer"):
        list(compute(DaskCluster(f"{LOOPBACK}:{free_port()}"), chunks()))


def chunks() -> list[Chunk]:
    """Both variants of the rehearsal, with four seeds in chunks of two."""
    return [
        Chunk(table="rehearsal", variant=variant, folder=CHECKOUT, seeds=seeds)
        for variant in METHODS
        for seeds in ((0, 1), (2, 3))
    ]


def rows_by(engine: Cores | RayCluster | DaskCluster, wanted: Sequence[Chunk]) -> dict[Chunk, tuple[Row, ...]]:
    """Each chunk's rows, with numbers as they were computed; a row compares every bit of its metrics."""
    found = {}
    for done in compute(engine, wanted):
        assert isinstance(done, Computed)
        found[done.chunk] = done.rows
    assert set(found) == set(wanted)
    return found


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """A Ray of two cores on this machine, started as an operator starts it, with its client server."""
    import psutil

    ports = {name: free_port() for name in ("port", "ray-client-server-port", "runtime-env-agent-port")}
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:  # paths of sockets are short
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
            *("--num-cpus=2", "--include-dashboard=false", "--object-store-memory=100000000", "--min-worker-port=0"),
            *("--max-worker-port=0", f"--node-ip-address={LOOPBACK}", f"--temp-dir={folder}"),
            *(f"--{name}={port}" for name, port in ports.items()),
        ]
        # With gRPC's handlers of fork, the process that Ray starts for a client dies now and then before it runs.
        environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "GRPC_ENABLE_FORK_SUPPORT": "0"}
        with subprocess.Popen(command, env=environment, stdout=PIPE, stderr=STDOUT, text=True) as head:
            try:
                assert head.stdout is not None
                said = list(itertools.takewhile(lambda line: "Ray runtime started" not in line, head.stdout))
                assert head.poll() is None, "".join(said)
                yield RayCluster(f"{LOOPBACK}:{ports['ray-client-server-port']}")
            except BaseException:
                for log in sorted(Path(folder).glob("session_latest/logs/ray_client_server*")):
                    print(f"== {log.name}", log.read_text(errors="replace"), sep="\n")
                raise
            finally:
                for process in [*psutil.Process(head.pid).children(recursive=True), head]:
                    process.kill()


@contextmanager
def dask_cluster(*, threads: int) -> Iterator[DaskCluster]:
    """A Dask scheduler and two workers in processes of their own, on this machine."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=threads, dashboard_address=None) as cluster:
        cluster.wait_for_workers(2)
        yield DaskCluster(cluster.scheduler_address.removeprefix("tcp://"))


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
