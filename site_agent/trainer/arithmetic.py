"""How this process computes: the same plan, data, seed and number of threads give the same bits.

Call `prepare_arithmetic` before torch is loaded for the first time; the math library reads its
setting once, and a prediction has to be made as the training's test was.
"""

from __future__ import annotations

import os


def prepare_arithmetic(threads: int) -> None:
    """Load torch with matrix products that depend neither on memory alignment nor on the CPU's kind.

    Args:
        threads: how many compute one operation; part of what makes results repeatable.
    """
    os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
