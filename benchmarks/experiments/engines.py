"""Computes chunks on the cores of this machine, or on the machines of a Ray or Dask cluster.

Chunks do not depend on one another. So an engine distributes them and yields each result when it arrives, in any order.
Each chunk takes one core and one thread. So its rows equal those of a single process to the bit, on the same kind of
CPU with the same libraries. Ray and Dask pickle the data that they send. Use a cluster only for public tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from joblib import Parallel, delayed

from benchmarks.experiments.chunks import Chunk, Computed, Refused, run_chunk
from protos.errors import UnavailableError, UsageError

_NOTHING: Final = "Nothing was computed."
_STARTS: Final = 3  # number of attempts, because a running Ray can fail to start the process for this client


@dataclass(frozen=True)
class Cores:
    """Computes in `count` processes on this machine. If `count` is 1, this process itself computes."""

    count: int


@dataclass(frozen=True)
class RayCluster:
    """Computes on a Ray cluster, at the host and port of its client server."""

    address: str


@dataclass(frozen=True)
class DaskCluster:
    """Computes on a Dask cluster, at the host and port of its scheduler."""

    address: str


Engine: TypeAlias = Cores | RayCluster | DaskCluster


def engine_of(jobs: int, cluster: str) -> Engine:
    """Return the cluster that `ray://host:port` or `dask://host:port` names; without a name, `jobs` cores.

    Raises:
        UsageError: the name has another form.
    """
    scheme, _, address = cluster.partition("://")
    host, _, port = address.rpartition(":")
    if not cluster:
        return Cores(jobs)
    if scheme not in ("ray", "dask") or not host or not port.isdigit():
        raise UsageError(
            what=f"{cluster!r} names no cluster.",
            consequence=_NOTHING,
            remedy="Give --cluster as ray://HOST:10001 or dask://HOST:8786.",
        )
    return RayCluster(address) if scheme == "ray" else DaskCluster(address)


def compute(engine: Engine, chunks: Sequence[Chunk]) -> Iterator[Computed | Refused]:
    """Yield each chunk's result when it arrives.

    Raises:
        OperatorError: the cluster's package is not installed, the cluster does not answer, or chunks would share a
            process.
    """
    match engine:
        case Cores(count):
            yield from Parallel(n_jobs=count, return_as="generator_unordered")(map(delayed(run_chunk), chunks))
        case RayCluster(address):
            yield from _on_ray(address, chunks)
        case DaskCluster(address):
            yield from _on_dask(address, chunks)
        case _:
            assert_never(engine)


def _on_ray(address: str, chunks: Sequence[Chunk]) -> Iterator[Computed | Refused]:
    try:
        import ray
    except ImportError as cause:
        raise _missing("ray") from cause
    with _reaching(f"ray://{address}"):
        for start in range(1, _STARTS + 1):
            try:
                context = ray.init(f"ray://{address}", log_to_driver=False)
                break
            except ConnectionAbortedError:
                if start == _STARTS:
                    raise
    with context:
        remote = ray.remote(num_cpus=1)(run_chunk)
        waiting = [remote.remote(chunk) for chunk in chunks]
        while waiting:
            ready, waiting = ray.wait(waiting)
            yield from ray.get(ready)


def _on_dask(address: str, chunks: Sequence[Chunk]) -> Iterator[Computed | Refused]:
    try:
        from distributed import Client, as_completed
    except ImportError as cause:
        raise _missing("distributed") from cause
    with _reaching(f"dask://{address}"):
        client = Client(f"tcp://{address}")
    with client:
        threads = sorted({worker["nthreads"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()})
        # torch has one generator for each process, so two chunks in one process would disturb each other
        if threads != [1]:
            raise UsageError(
                what=f"The workers of dask://{address} run {threads or 'no'} chunks at once in a process; 1 is needed.",
                consequence=_NOTHING,
                remedy="Start each worker with `dask worker --nthreads 1`, and with --nworkers for its cores.",
            )
        for _, result in as_completed(client.map(run_chunk, chunks, pure=False), with_results=True):
            yield result


@contextmanager
def _reaching(cluster: str) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise UnavailableError(
            what=f"The cluster {cluster} does not answer.",
            consequence=_NOTHING,
            remedy="Check whether it runs, and whether this machine reaches its port. Then start again.",
        ) from cause


def _missing(package: str) -> UsageError:
    return UsageError(
        what=f"The package {package} is not installed in this environment.",
        consequence=_NOTHING,
        remedy="Run `python -m pip install --constraint constraints.txt '.[cluster]'`.",
    )
