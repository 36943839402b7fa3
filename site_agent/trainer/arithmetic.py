"""Reproducible arithmetic: the same plan, data, seed and threads give the same bits.

Call `prepare_arithmetic` before torch is loaded for the first time; the math library reads its
setting once, and a prediction has to be made as the training's test was. The promise holds for one
kind of CPU (docs/design/protocol.md, "The same bits"): asking more of the math library costs a third of the training
time, and torch's own kernels would differ between kinds all the same.
"""

from __future__ import annotations

import os


def prepare_arithmetic(threads: int) -> None:
    """Load torch with matrix products that do not depend on addresses in memory.

    Args:
        threads: how many compute one operation; part of what makes results repeatable.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO")

    import numpy as np  # noqa: F401  # what is limited below has to be loaded
    import torch
    import torch.utils.deterministic
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads)
    # numpy's and scikit-learn's products, whose last bits follow the number of threads too; numpy is loaded
    # by now, so an environment variable would come too late.
    threadpool_limits(threads, user_api="blas")
    torch.use_deterministic_algorithms(True)
    # Determinism would otherwise fill every new tensor before it is written; nothing here reads one unwritten.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # missing in the stubs
