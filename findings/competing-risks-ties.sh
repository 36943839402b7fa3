#!/usr/bin/env bash
# lifelines 0.30.3: the cumulative incidence of an event beside a competing one depends on chance if days are tied. Times
# are moved by random parts of a day, so a patient who is censored on the day of an event can leave before it. The same
# five patients give 0.4 or 0.5. scikit-survival 0.28.0 gives 0.4, as the usual definition does: events come first.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "lifelines, ten seeds: [0.4, 0.5]
scikit-survival: 0.4" numpy==2.4.6 pandas==2.3.3 scipy==1.17.1 lifelines==0.30.3 scikit-survival==0.28.0 <<'PY'
import numpy as np
from lifelines import AalenJohansenFitter
from sksurv.nonparametric import cumulative_incidence_competing_risks

days, events = np.array([1, 1, 2, 2, 3]), np.array([1, 2, 1, 0, 2])  # 0: censored
curves = [AalenJohansenFitter(seed=seed).fit(days, events, event_of_interest=1) for seed in range(10)]
found = {round(float(curve.cumulative_density_.iloc[-1, 0]), 6) for curve in curves}
print("lifelines, ten seeds:", sorted(found))
print("scikit-survival:", round(float(cumulative_incidence_competing_risks(events, days)[1][1, -1]), 6))
PY
