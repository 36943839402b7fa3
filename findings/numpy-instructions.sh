#!/usr/bin/env bash
# numpy 2.4.6: since 2.4 a group has another name, and NPY_DISABLE_CPU_FEATURES="AVX2 FMA3" switches nothing off. Python hides the
# warning. So a comparison of processors compares one with itself. Guess: AVX2 is off, as in earlier versions.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "AVX2 FMA3: the same bits, 0 lines of warnings
X86_V3: other bits, 0 lines of warnings" numpy==2.4.6 <<'PY'
import os
import subprocess
import sys

program = "import numpy as np; print(np.exp(np.linspace(-5, 5, 1001, dtype=np.float32)).tobytes().hex())"


def ran(names):
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": names}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)


for names in ("AVX2 FMA3", "X86_V3"):
    other, warned = ran(names).stdout != ran("").stdout, ran(names).stderr.splitlines()
    print(f"{names}: {'other' if other else 'the same'} bits, {len(warned)} lines of warnings")
PY
