"""Makes training reproducible: the same plan, data, seed and number of threads give exactly the same numbers.

Call `prepare_arithmetic` before torch is loaded for the first time, because the math library reads its setting once.
The promise holds for one kind of CPU (docs/researcher.md). On a graphics card all products are in
float32 (no TF32) and by deterministic algorithms. The last bits of its results differ from a CPU's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, Final, Literal

from protos.errors import UnavailableError
from site_agent.trainer.failures import unfit

_COMPILER: Final = "torch._dynamo"
# The driver and its libraries report missing memory with these words, in errors of PyTorch's general class.
_NO_MEMORY: Final = ("CUDA error: out of memory", "_STATUS_ALLOC_FAILED")


class _Uncompiled(ModuleType):
    """Replaces torch's compiler by a small object with the functions that torch's optimisers use.

    Torch's optimisers load the compiler only to exclude themselves from compilation, and nothing is compiled here. That
    takes a second, and memory for 800 modules. Any other use of the compiler loads the compiler itself.
    """

    @staticmethod
    def disable(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        return function

    @staticmethod
    def graph_break() -> None:
        """Return without an effect, because this program compiles no part of a network."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name != "__path__":  # code that inspects all modules must not load the compiler
            raise AttributeError(name)
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
        return getattr(import_module(_COMPILER), name)


def prepare_arithmetic(threads: int, device: Literal["cpu", "cuda"] = "cpu") -> None:
    """Let PyTorch compute the same in each run with so many threads. Raise ConfigurationError without `cuda`."""
    os.environ.setdefault("MKL_CBWR", "AUTO")
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # needed before torch is loaded

    import numpy as np  # noqa: F401  # numpy must be loaded before its threads are limited
    import torch
    import torch.utils.deterministic
    from threadpoolctl import threadpool_limits

    sys.modules.setdefault(_COMPILER, _Uncompiled(_COMPILER))
    torch.set_num_threads(threads)
    # The last bits of numpy's and scikit-learn's products also depend on the number of threads. numpy is already
    # loaded, so an environment variable would be too late.
    threadpool_limits(threads, user_api="blas")
    # This has the same effect as `use_deterministic_algorithms(True)`, which would also load torch's compiler.
    torch.set_deterministic_debug_mode("error")
    # Otherwise torch would fill every new tensor, although no code here reads a tensor before writing it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # missing in the stubs
    if device == "cuda":
        _require_card()
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def _require_card() -> None:
    import torch

    if torch.cuda.is_available():
        return
    if torch.version.cuda is None and torch.version.hip is None:
        found = "the installed PyTorch is a build for processors only"
        remedy = "Install a PyTorch build for your graphics card, or set device: cpu under training in hospital.yaml."
    else:
        found = "PyTorch finds no graphics card here"
        remedy = (
            "Check the driver with nvidia-smi. Open the card to the service with the drop-in site-trainer-gpu.conf. Or "
            "set device: cpu under training in hospital.yaml."
        )
    raise unfit(what=f"hospital.yaml sets device: cuda under training, but {found}.", remedy=remedy)


def card_memory_error(error: Exception) -> UnavailableError | None:
    """Return an error with a remedy if a graphics card had too little free memory, or None for any other exception."""
    import torch

    is_known = isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
    if not (is_known or isinstance(error, torch.OutOfMemoryError)):
        return None
    return UnavailableError(
        what="The graphics card does not have enough free memory for training.",
        consequence="Training did not continue. The audit log lists all that this site sent in earlier rounds.",
        remedy=(
            "End other programs that use the graphics card (nvidia-smi lists these programs), and start the trainer "
            "again. If no other program uses the graphics card, ask the researcher for a plan with smaller batches or "
            "a narrower network."
        ),
    )
