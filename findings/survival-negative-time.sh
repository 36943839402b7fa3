#!/usr/bin/env bash
# lifelines 0.30.3: a negative follow-up time, as from two dates in the wrong order, is an ordinary early death in the
# Kaplan-Meier curve and in the Cox model. statsmodels 0.15.0 refuses the same numbers.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "curve begins at -1.0 with 0.6667
Cox model fitted: True
statsmodels: ValueError" numpy==2.4.6 pandas==2.3.3 scipy==1.17.1 statsmodels==0.15.0 lifelines==0.30.3 <<'PY'
import numpy as np
import pandas as pd
from lifelines import CoxPHFitter, KaplanMeierFitter
from statsmodels.duration.hazard_regression import PHReg

curve = KaplanMeierFitter().fit([-1, 2, 3], [1, 1, 1]).survival_function_
print("curve begins at", curve.index[0], "with", round(float(curve.iloc[0, 0]), 4))
table = pd.DataFrame({"time": [-1.0, 2, 3, 4, 5, 6], "dead": [1, 1, 0, 1, 1, 1], "x": [1, 2, 1, 3, 2, 1.0]})
print("Cox model fitted:", bool(np.isfinite(CoxPHFitter().fit(table, "time", "dead").params_["x"])))
try:
    PHReg(table.time, table.x, status=table.dead)
except ValueError as error:
    print("statsmodels:", type(error).__name__)
PY
