#!/usr/bin/env bash
# flwr 1.42.0: the trimmed mean cuts a whole number of sites at each end, rounded down. With the default of 0.2 and fewer
# than five sites it cuts none and is the plain mean.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "3 sites: trimmed 334, plain 334
4 sites: trimmed 250.75, plain 250.75
5 sites: trimmed 1, plain 200.8
9 sites: trimmed 1, plain 112" numpy==2.4.6 flwr==1.42.0 <<'PY'
import logging
import time

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.serverapp.strategy import FedAvg, FedTrimmedAvg

logging.disable(logging.CRITICAL)


def reply(number):
    parts = {"arrays": ArrayRecord([np.array([number], np.float64)]), "metrics": MetricRecord({"num-examples": 100})}
    return Message(metadata=Metadata(1, "", 1, 0, "", "1", time.time(), 60.0, "train"), content=RecordDict(parts))


for sites in (3, 4, 5, 9):
    found = []
    for strategy in (FedTrimmedAvg(), FedAvg()):
        replies = [reply(1000.0 if site == 0 else 1.0) for site in range(sites)]
        found.append(strategy.aggregate_train(1, replies)[0].to_numpy_ndarrays()[0].item())
    print(f"{sites} sites: trimmed {found[0]:g}, plain {found[1]:g}")
PY
