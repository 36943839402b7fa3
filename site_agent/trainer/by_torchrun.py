"""Starts the trainer with several processes: `python -m site_agent.trainer.by_torchrun --nproc-per-node 2 ...`.

The command accepts torchrun's options. Rank 0 is the trainer. The other ranks are helpers, see
training/parted_gradients.py. The rules:

* the command ends with the trainer's exit status. Torchrun itself always ends with 1 after a failure, so the service
  manager could not see that a restart is useless;
* only torchrun's static rendezvous is allowed, because its other rendezvous unpickles what it receives;
* on one computer the trainer refuses to run if it has a route to another computer. With several computers it needs
  such a route, and logs a warning.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from protos.errors import ConfigurationError, UsageError
from site_agent.trainer.isolation import end_with_parent, leads_out

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Work

    from site_agent.trainer.training.parted_gradients import GradientParts

_JOIN_SECONDS: Final = 600


def is_launched() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def rank() -> int:
    """Return the number of this process among all processes of the trainer."""
    return int(os.environ["RANK"])


def prefer_loopback() -> bool:
    """Let the trainer's processes connect over the loopback interface. Return whether all are on one computer."""
    is_one_computer = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    if is_one_computer:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return is_one_computer


def require_own_network() -> bool:
    """Return whether this process can reach another computer. That is an error if all processes are on this one."""
    is_one_computer, has_route = prefer_loopback(), leads_out()
    if has_route and is_one_computer:
        raise ConfigurationError(
            what=(
                "Torchrun started the trainer, and this trainer can reach other computers over the network. This is "
                "not allowed."
            ),
            consequence="The trainer did not start. Nothing was sent.",
            remedy="Run the trainer as a service with the file site-trainer-torchrun.conf. Without systemd, start "
            "torchrun in a network namespace that has only the loopback interface: see docs/operator.md.",
        )
    return has_route


@contextmanager
def _reporting_loss() -> Iterator[None]:
    """If the communication in the `with` block fails, report that a process of the trainer is lost."""
    from site_agent.trainer.training.parted_gradients import lost_process

    try:
        yield
    except RuntimeError as cause:
        raise lost_process() from cause


class _Group:
    """Passes tensors between the processes of torchrun's group with gloo."""

    def begin_send(self, tensor: Tensor, rank: int) -> Callable[[float], None]:
        from torch import distributed

        with _reporting_loss():
            work = distributed.isend(tensor.contiguous(), rank)
        return partial(self._wait, work)

    def receive(self, into: Tensor, rank: int, seconds: float) -> None:
        from torch import distributed

        with _reporting_loss():
            work = distributed.irecv(into, rank)
        self._wait(work, seconds)

    @staticmethod
    def _wait(work: Work | None, seconds: float) -> None:
        assert work is not None
        with _reporting_loss():
            work.wait(timedelta(seconds=seconds))


@contextmanager
def _joined() -> Iterator[_Group]:
    """Join the other processes of torchrun's group. Leave the group at the end of the `with` block."""
    from torch import distributed

    end_with_parent()  # torchrun can be killed before it ends its processes
    with _reporting_loss():
        distributed.init_process_group("gloo", timeout=timedelta(seconds=_JOIN_SECONDS))
    try:
        yield _Group()
    finally:
        distributed.destroy_process_group()


def help_trainer() -> None:
    """Compute parts of batches for the first process until the first process ends. Open no file of the site.

    Raises:
        OperatorError: the trainer is lost, or sent work that no trainer sends.
    """
    from site_agent.trainer.arithmetic import prepare_arithmetic

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as prepare_arithmetic does it for a graphics card
    prepare_arithmetic(1)

    import torch

    from site_agent.trainer.training import parted_gradients

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with _joined() as group:
        parted_gradients.help_trainer(group, int(os.environ["LOCAL_RANK"]))


@contextmanager
def gradient_parts() -> Iterator[GradientParts]:
    """Let the other processes compute parts of batches inside the `with` block, and end these processes after it.

    Raises:
        UnavailableError: the other processes did not start in time.
    """
    from site_agent.trainer.training.parted_gradients import GradientParts
    from site_agent.trainer.training.training_model import Model

    with _joined() as group:
        Model.in_parts = parts = GradientParts(int(os.environ["WORLD_SIZE"]), group)
        try:
            yield parts
        finally:
            parts.end()


def trainer_status(statuses: Mapping[int, int]) -> int | None:
    """Return the exit status of the whole trainer, from the exit statuses of its failed processes by rank.

    A helper often fails only because the trainer ended. None if a signal or a lost helper ended the trainer.
    """
    own = statuses.get(0, 0)
    return own if own > 0 else None  # a process that a signal ended has a negative status


def main() -> None:
    """Run torchrun with the options of the command line."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from site_agent.trainer.training.parted_gradients import lost_process

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun sets it too, and prints a warning
    if sys.flags.safe_path:  # torchrun does not pass on the option -P
        os.environ["PYTHONSAFEPATH"] = "1"
    options = run.parse_args(sys.argv[1:])  # type: ignore[no-untyped-call]  # torch gives neither of them a type
    try:
        if options.standalone or options.rdzv_backend != "static" or options.master_port is None:
            raise UsageError(
                what=(
                    "These options of torchrun are not allowed. These options select the connection method c10d, with "
                    "which received data could be run as program code."
                ),
                consequence="The trainer did not start. Nothing was sent.",
                remedy=(
                    "Leave out the options --standalone and --rdzv-backend. Set --master-port, for example to 29500."
                ),
            )
        run.run(options)  # type: ignore[no-untyped-call]
    except UsageError as error:
        print(error.lines("site-trainer"), file=sys.stderr)
        sys.exit(error.exit_status)
    except ChildFailedError as failed:
        status = trainer_status({number: failure.exitcode for number, failure in failed.failures.items()})
        if status is None:  # otherwise the trainer has printed its error
            print(lost_process().lines("site-trainer"), file=sys.stderr)
        sys.exit(status or 1)
    except SignalException as ended:
        signal.signal(ended.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), ended.sigval)


if __name__ == "__main__":
    main()
