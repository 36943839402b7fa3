#!/usr/bin/env bash
# statsmodels 0.15.0: a survival curve of counted rows (freq_weights) has other standard errors than one of the same rows
# repeated. The curves are equal. R's survfit has 0.1386 and 0.1571 in both ways. Guess: equal.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "counted: 0.7778 0.6667, standard errors 0.1571 0.2124
repeated: 0.7778 0.6667, standard errors 0.1386 0.1571" numpy==2.4.6 pandas==2.3.3 scipy==1.17.1 statsmodels==0.15.0 <<'PY'
import numpy as np
from statsmodels.duration.survfunc import SurvfuncRight

times, deaths, counts = np.arange(1.0, 7.0), np.array([1, 1, 1, 0, 1, 1]), np.array([2, 1, 2, 1, 2, 1])
for name, curve in (
    ("counted", SurvfuncRight(times, deaths, freq_weights=counts)),
    ("repeated", SurvfuncRight(np.repeat(times, counts), np.repeat(deaths, counts))),
):
    (a, b), (c, d) = curve.surv_prob[:2], curve.surv_prob_se[:2]
    print(f"{name}: {a:.4f} {b:.4f}, standard errors {c:.4f} {d:.4f}")
PY
