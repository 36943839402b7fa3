#!/usr/bin/env bash
# flwr 1.42.0: FedAvg checks the names of tensors and not their shapes. A tensor with one number is added to each number of
# the others' tensor, and whether that is an error depends on the order in which the replies came.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "three numbers, then one: [5.5, 6.0, 6.5]
one number, then three: ValueError" numpy==2.4.6 flwr==1.42.0 <<'PY'
import logging
import time

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.serverapp.strategy import FedAvg

logging.disable(logging.CRITICAL)


def reply(*numbers):
    parts = {"arrays": ArrayRecord([np.array(numbers, np.float32)]), "metrics": MetricRecord({"num-examples": 100})}
    return Message(metadata=Metadata(1, "", 1, 0, "", "1", time.time(), 60.0, "train"), content=RecordDict(parts))


for name, replies in (
    ("three numbers, then one", (reply(1, 2, 3), reply(10))),
    ("one number, then three", (reply(10), reply(1, 2, 3))),
):
    try:
        arrays, _ = FedAvg().aggregate_train(1, replies)
        print(f"{name}: {arrays.to_numpy_ndarrays()[0].tolist()}")
    except ValueError as error:
        print(f"{name}: {type(error).__name__}")
PY
