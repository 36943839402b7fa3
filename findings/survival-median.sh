#!/usr/bin/env bash
# lifelines 0.30.3 and statsmodels 0.15.0: the median of four survival times 1, 2, 3, 4 is 2 in one and 3 in the other.
# The curve is exactly one half from 2 to 3. The usual definition of a sample's median gives 2.5, which is in neither.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "lifelines 2.0
statsmodels 3.0
numpy 2.5" numpy==2.4.6 pandas==2.3.3 scipy==1.17.1 statsmodels==0.15.0 lifelines==0.30.3 <<'PY'
import numpy as np
from lifelines import KaplanMeierFitter
from statsmodels.duration.survfunc import SurvfuncRight

times, deaths = np.array([1.0, 2, 3, 4]), np.ones(4)
print("lifelines", float(KaplanMeierFitter().fit(times, deaths).median_survival_time_))
print("statsmodels", float(SurvfuncRight(times, deaths).quantile(0.5)))
print("numpy", float(np.median(times)))
PY
