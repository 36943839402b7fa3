#!/usr/bin/env bash
# safetensors 0.8.0: its functions for numpy save a transposed matrix in the order of memory and with the transposed shape,
# so other numbers are read back, without a word. Guess: the matrix that was saved, or a refusal as in its functions for torch.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "[[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] is read as [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]" numpy==2.4.6 \
    safetensors==0.8.0 <<'PY'
import numpy as np
from safetensors.numpy import load, save

matrix = np.arange(6.0).reshape(2, 3).T
print(f"{matrix.tolist()} is read as {load(save({'matrix': matrix}))['matrix'].tolist()}")
PY
