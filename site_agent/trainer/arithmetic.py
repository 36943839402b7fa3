"""How this process computes: the same plan, data, seed and number of threads give the same bits.

Call `prepare_arithmetic` before torch is loaded for the first time; the math library reads its
setting once, and a prediction has to be made as the training's test was. The promise holds for one
kind of CPU (PROTOCOL.md, section 6): asking more of the math library costs a third of the training
time, and torch's own kernels would differ between kinds all the same.
"""

from __future__ import annotations

import os


def prepare_arithmetic(threads: int) -> None:
    """Load torch with matrix products whose bits do not depend on where in memory they lie.

    Args:
        threads: how many compute one operation; part of what makes results repeatable.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO")

    import torch
    import torch.utils.deterministic

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Determinism would otherwise fill every new tensor before it is written; nothing here reads one unwritten.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # missing in the stubs
