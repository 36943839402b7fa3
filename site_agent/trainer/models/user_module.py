"""Loads a hospital's own network from a Python file on the hospital's disk.

This is the only place in this program where the text of a file becomes code. The path is in hospital.yaml, never in a
plan or a message. The rules:

* only the owners can write the file or replace it in its folders. The program runs exactly the text that it read from
  the open file, and no earlier compiled file replaces it;
* the module has every tensor that the plan lists as federated, with its name and shape;
* every other parameter and every buffer, including counters, is private and stays at the site;
* an error text of the file's own code is shown to this site's operator and sent to nobody.

The file defines `build(columns: int, outputs: int) -> torch.nn.Module`: rows (B, columns) to (B, outputs),
float32 on the CPU.
"""

from __future__ import annotations

import copy
import os
import stat
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from protos.plan.architecture import TensorSpec
from protos.plan.documents import nearest_name
from protos.plan.initial_values import initial_values
from site_agent.trainer.failures import ModuleDiffers, unfit

_LARGEST_FILE_BYTES: Final = 1 << 20
_MODULE_NAME: Final = "user_module"
_DRY_ROWS: Final = 2
_MOST_DIFFERENCES: Final = 10


def build_user_module(path: Path, columns: int, outputs: int, tensors: Sequence[TensorSpec], seed: int) -> nn.Module:
    """Build the module of the hospital's file, compare it with the plan's tensors, and return it in training mode.

    The file's code draws random numbers from torch's generator, set by the seed every time. The caller's own generator
    is unchanged. Federated parameters still have the file's first values. `outputs` is 1 for two classes or a number,
    otherwise the number of classes.

    Raises:
        ConfigurationError: other accounts can change the file, its code fails, or the module does not fit the plan
            and this site's table.
    """
    source = read_source(path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _built(path, source, columns, outputs)
        _check_parameters(path, network, tensors)
        _check_outputs(path, network, columns, outputs)
    return network.train()


def freeze_tensors(path: Path, network: nn.Module, frozen: Sequence[TensorSpec], seed: int) -> None:
    """Freeze the tensors that the plan freezes.

    A frozen parameter becomes a buffer, so nothing trains or sends it. Its values are those of the plan's starting
    file, or follow from the plan's seed.

    Raises:
        ConfigurationError: a frozen tensor differs from the plan.
    """
    there = dict(network.named_parameters()) | dict(network.named_buffers())
    _check_federated(path, {name: tuple(values.shape) for name, values in there.items()}, frozen, "freezes")
    for tensor in frozen:
        if (kind := there[tensor.name].dtype) != torch.float32:
            _refuse(
                f"The plan freezes {tensor.name} of the module in {path}, which has the type {kind}.",
                "Only float32 tensors can be frozen. Ask the researcher to leave this buffer out of the plan.",
            )
        owner, _, name = tensor.name.rpartition(".")
        holder = network.get_submodule(owner)
        delattr(holder, name)
        holder.register_buffer(name, torch.from_numpy(initial_values(tensor, seed)))


def check_batch(path: Path, network: nn.Module, columns: int, rows: int, federated: Sequence[str]) -> None:
    """Raise an error if the module cannot train on batches of this size. Batch normalisation needs two rows.

    Raises:
        ConfigurationError: on a batch of zeros, (rows, columns), the file's code fails, its output is not finite, or a
            federated parameter has no gradient.
    """
    trial = copy.deepcopy(network).train()
    trial.zero_grad(set_to_none=True)
    explaining = _explaining(
        path,
        what=f"The module in {path} failed on a training batch of {rows} rows:",
        remedy=(
            "Change the module so that it can train on this number of rows. Batch normalisation needs at least two "
            "rows. Or agree with the other sites on a plan with fewer batches per epoch."
        ),
    )
    with explaining, torch.random.fork_rng(devices=[]), torch.enable_grad():
        found = trial(torch.zeros(rows, columns, device=next(trial.parameters()).device))
        found.square().sum().backward()
    if not found.isfinite().all():
        _refuse(
            f"The module in {path} returns infinite or undefined numbers for rows of zeros.",
            "Check where its forward divides or takes logarithms.",
        )
    parameters = dict(trial.named_parameters())
    if idle := [name for name in federated if parameters[name].grad is None]:
        _refuse(
            f"The module in {path} does not use {_some(idle)} for its result, but the plan shares it.",
            "Let forward use every layer that the plan lists, without detaching its result.",
        )


def read_source(path: Path) -> bytes:
    """Return the content of the module's file. Raise ConfigurationError if others can write it, or it is unreadable."""
    try:
        real = path.resolve(strict=True)
        for folder in real.parents:
            _check_writers(folder, folder.stat(), is_file=False)
        # O_NONBLOCK, because opening a pipe must not wait for a program that writes into it.
        with os.fdopen(os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            # We check the file that is open, because the file at this path could be replaced between check and reading.
            _check_writers(real, os.fstat(file.fileno()), is_file=True)
            source = file.read(_LARGEST_FILE_BYTES + 1)
    except OSError as cause:
        raise unfit(
            what=f"The module's file {path} cannot be read: {cause.strerror}.",
            remedy="Give the path of an existing file that this user may read.",
        ) from cause
    if len(source) > _LARGEST_FILE_BYTES:
        _refuse(f"The module's file {path} is larger than {_LARGEST_FILE_BYTES} bytes.", "Keep code in it and no data.")
    return source


def _check_writers(path: Path, state: os.stat_result, *, is_file: bool) -> None:
    if is_file and not stat.S_ISREG(state.st_mode):
        _refuse(f"{path} is not a regular file.", "Give the path of the file itself.")
    # In a folder like /tmp (sticky) everybody may write, but nobody may replace another user's files.
    is_sticky_folder = not is_file and state.st_mode & stat.S_ISVTX
    if state.st_mode & 0o022 and not is_sticky_folder:
        _refuse(
            f"{path} can be written by other accounts, which could change the code that trains here.",
            f"Read the module's file again, then run `chmod go-w {path}`.",
        )


def _built(path: Path, source: bytes, columns: int, outputs: int) -> nn.Module:
    module = ModuleType(_MODULE_NAME)
    module.__file__ = str(path)
    sys.modules[_MODULE_NAME] = module  # dataclasses find their module by name
    with _explaining(
        path,
        what=f"The module's file {path} did not build a network:",
        remedy=(
            "Correct this file. The file must define a function build(columns, outputs), which returns a "
            "torch.nn.Module."
        ),
    ):
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102  # the hospital's own file, checked above
        network = module.build(columns, outputs)
    if not isinstance(network, nn.Module):
        _refuse(
            f"build in {path} returned a value of type {type(network).__name__}.", "Let it return a torch.nn.Module."
        )
    return network


def _check_parameters(path: Path, network: nn.Module, tensors: Sequence[TensorSpec]) -> None:
    found = dict(network.named_parameters())
    for name, values in found.items():
        if is_lazy(values) or values.dtype != torch.float32 or values.device.type != "cpu" or not values.requires_grad:
            _refuse(
                f"The parameter {name} of the module in {path} is not a float32 tensor on the CPU that is trained.",
                "Give it its shape and type in build, or register it as a buffer if it is not to be trained.",
            )
    _check_federated(path, {name: tuple(values.shape) for name, values in found.items()}, tensors)


def _check_federated(
    path: Path, found: Mapping[str, tuple[int, ...]], tensors: Sequence[TensorSpec], verb: str = "federates"
) -> None:
    """Refuse a module if a tensor of the plan is missing or has another shape. The error names the first one."""
    differences, remedies = dict[str, str](), []
    free = found.keys() - {tensor.name for tensor in tensors}
    for tensor in tensors:
        if tensor.name not in found:
            near = nearest_name(tensor.name, free)
            hint = f"; did you mean {near}?" if near is not None else "."
            subject = f"The module in {path} has no parameter {tensor.name}"
            differences[tensor.name] = f"{subject}, which the plan {verb}{hint}"
            remedies.append(f"Name its parts as in the plan. It has {_some(list(found))}.")
        elif found[tensor.name] != tensor.shape:
            subject = f"The parameter {tensor.name} of the module in {path}"
            differences[tensor.name] = f"{subject} has shape {found[tensor.name]}, the plan says {tensor.shape}."
            remedies.append("Give the shared layers the plan's widths.")
    if differences:
        shown, more = list(differences.values())[:_MOST_DIFFERENCES], len(differences) - _MOST_DIFFERENCES
        what = "\n    ".join([*shown, *([f"and {more} more"] if more > 0 else [])])
        raise ModuleDiffers(what, " ".join(dict.fromkeys(remedies)), tensor=next(iter(differences)))


def _check_outputs(path: Path, network: nn.Module, columns: int, outputs: int) -> None:
    explaining = _explaining(
        path,
        what=f"The module in {path} failed on {_DRY_ROWS} rows of {columns} zeros:",
        remedy="`forward` must map float32 rows of shape (B, columns) to float32 values of shape (B, outputs).",
    )
    with explaining, torch.no_grad():
        # A copy is tested, so that counters and running means of the module keep their initial values.
        found = copy.deepcopy(network).eval()(torch.zeros(_DRY_ROWS, columns))
    wanted = (_DRY_ROWS, outputs)
    if not isinstance(found, Tensor) or tuple(found.shape) != wanted or found.dtype != torch.float32:
        shown = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        _refuse(
            f"The module in {path} returned {shown} for {_DRY_ROWS} rows. This site needs torch.float32 {wanted}.",
            "Let forward return one float32 row of outputs for each row.",
        )


@contextmanager
def _explaining(path: Path, *, what: str, remedy: str) -> Iterator[None]:
    """If the code in the `with` block fails, raise an error with the traceback from the hospital's file onwards."""
    try:
        yield
    except (Exception, SystemExit) as cause:
        inner: TracebackType | None = cause.__traceback__
        while inner is not None and inner.tb_frame.f_code.co_filename != str(path):
            inner = inner.tb_next
        lines = "".join(traceback.format_exception(type(cause), cause, inner)).rstrip()
        raise unfit(what=f"{what}\n{lines}", remedy=remedy) from cause


def _some(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "") or "none"


def _refuse(what: str, remedy: str) -> NoReturn:
    raise unfit(what=what, remedy=remedy)
