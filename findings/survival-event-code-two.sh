#!/usr/bin/env bash
# statsmodels 0.15.0: in one package, an event code of 2 counts as two deaths (SurvfuncRight) and as none (PHReg).
# A table with 1 = alive and 2 = dead, as SAS and SPSS users write it, gets wrong curves without a word.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "curve with 0 and 1: 0.6667 0.0
curve with 0 and 2: 0.3333 0.0
deaths counted: 3.0 of 2
Cox with 1 and 2 reads the ones as deaths: True" numpy==2.4.6 pandas==2.3.3 scipy==1.17.1 statsmodels==0.15.0 <<'PY'
import numpy as np
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.duration.survfunc import SurvfuncRight

times = np.array([1.0, 2, 3, 4])
for codes in ([0, 1, 0, 1], [0, 2, 0, 2]):
    curve = SurvfuncRight(times, np.array(codes))
    print(f"curve with 0 and {max(codes)}:", *np.round(curve.surv_prob, 4))
print("deaths counted:", SurvfuncRight(times, np.array([0, 1, 0, 2])).n_events.sum(), "of 2")
long = np.arange(1, 41.0)
x = np.tile([0, 0.5, 1, 2], 10)
codes = np.tile([1, 2], 20)
fits = [PHReg(long, x, status=status).fit().params[0] for status in (codes, (codes == 1).astype(int))]
print("Cox with 1 and 2 reads the ones as deaths:", bool(np.isclose(*fits)))
PY
