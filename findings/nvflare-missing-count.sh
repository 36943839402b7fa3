#!/usr/bin/env bash
# nvflare 2.9.0: a hospital whose number of steps is missing counts as one step, so the mean of 1 (of 350 steps) and 10 (of 100)
# becomes 9.91. Only a line of the log says so. Guess: its contribution is refused.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "both counts: accepted [True, True], mean 3.0
one count missing: accepted [True, True], mean 9.91" numpy==2.4.6 nvflare==2.9.0 <<'PY'
import logging

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.aggregators.dxo_aggregator import DXOAggregator
from nvflare.app_common.app_constant import AppConstants

logging.disable(logging.CRITICAL)
context = FLContext()
context.set_prop(AppConstants.CURRENT_ROUND, 0)
for name, metas in (
    ("both counts", ({MetaKey.NUM_STEPS_CURRENT_ROUND: 350}, {MetaKey.NUM_STEPS_CURRENT_ROUND: 100})),
    ("one count missing", ({}, {MetaKey.NUM_STEPS_CURRENT_ROUND: 100})),
):
    mean, accepted = DXOAggregator(expected_data_kind=DataKind.WEIGHTS), []
    for site, number, meta in zip("ab", (1.0, 10.0), metas, strict=True):
        one = DXO(DataKind.WEIGHTS, data={"w": np.array([number])}, meta=meta)
        accepted.append(mean.accept(one, site, 0, context))
    print(f"{name}: accepted {accepted}, mean {mean.aggregate(context).data['w'].item():.2f}".replace("3.00", "3.0"))
PY
