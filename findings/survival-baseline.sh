#!/usr/bin/env bash
# statsmodels 0.15.0 and lifelines 0.30.3: a Cox model with Efron's ties has a baseline hazard with Breslow's. R's basehaz has
# 0.7003 at time 2, because it takes Efron's for both. Guess: Efron's for both.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "statsmodels 0.6417
lifelines 0.6417
Efron by hand 0.7003
Breslow by hand 0.6417" numpy==2.4.6 pandas==2.3.3 scipy==1.17.1 statsmodels==0.15.0 lifelines==0.30.3 <<'PY'
import numpy as np
import pandas as pd
from lifelines import CoxPHFitter
from statsmodels.duration.hazard_regression import PHReg

times, deaths = np.array([1.0, 2, 2, 3, 4, 5]), np.array([1, 1, 1, 0, 1, 1])
column = np.array([0.0, 1, 0, 1, 1, 0])
fitted = PHReg(times, column[:, None], deaths, ties="efron").fit(disp=0)
print(f"statsmodels {fitted.baseline_cumulative_hazard[0][1][2]:.4f}")  # the last number before time 2 ends
cox = CoxPHFitter().fit(pd.DataFrame({"time": times, "death": deaths, "column": column}), "time", "death")
at_zero = cox.baseline_cumulative_hazard_.loc[2.0].item() * np.exp(-cox.params_.item() * column.mean())
print(f"lifelines {at_zero:.4f}")
weights = np.exp(fitted.params[0] * column)
first, second, tied = 1 / weights.sum(), weights[1:].sum(), weights[1:3].sum()
print(f"Efron by hand {first + 1 / second + 1 / (second - tied / 2):.4f}")
print(f"Breslow by hand {first + 2 / second:.4f}")
PY
