#!/usr/bin/env bash
# flwr 1.42.0: under secure aggregation a number that is not one (NaN) becomes a whole number, and the sum an ordinary one. The
# mean of two half-precision tensors of 100 is infinite, because the counts of rows multiply them first. Guess: both refused.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "sent: [-2147483648, 2228224]
the sum of two sites: [-8199.5, 1.0]
the mean of 100 and 100 in half precision: inf" numpy==2.4.6 flwr==1.42.0 <<'PY'
import numpy as np
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.server.strategy.aggregate import aggregate

broken, whole = ([np.array(numbers)] for numbers in ([np.nan, 0.5], [0.5, 0.5]))
(sent,), (other,) = quantize(broken, 8.0, 1 << 22), quantize(whole, 8.0, 1 << 22)
print(f"sent: {sent.tolist()}")
(total,) = dequantize([sent.astype(np.int64) + other], 8.0, 1 << 22)
print(f"the sum of two sites: {(total - 8.0).round(1).tolist()}")
tensor = [np.array([100.0], np.float16)]
print(f"the mean of 100 and 100 in half precision: {aggregate([(tensor, 300), (tensor, 500)])[0][0]}")
PY
