#!/usr/bin/env bash
# statsmodels 0.15.0: a patient who comes under observation on the day of another's death is not at risk in its curves,
# and is at risk in its Cox model, so two models of one table have other patients. lifelines 0.30.3 has both without this
# patient, as R, but its table of the same curve shows 4 at risk beside the estimate from 3.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "statsmodels: curve 0.6667 of 3 at risk, log hazard ratio 0.2704
lifelines: curve 0.6667 of 4 at risk, log hazard ratio 0.4904
by hand: entered before the death 0.4904, on its day too 0.2704" numpy==2.4.6 pandas==2.3.3 scipy==1.17.1 statsmodels==0.15.0 lifelines==0.30.3 <<'PY'
import numpy as np
import pandas as pd
from lifelines import CoxPHFitter, KaplanMeierFitter
from scipy.optimize import minimize_scalar
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.duration.survfunc import SurvfuncRight

end, entry, died = np.array([5.0, 5, 8, 8]), np.array([0.0, 0, 5, 0]), np.array([1, 0, 1, 0])
curve, other = SurvfuncRight(end, died, entry=entry), KaplanMeierFitter().fit(end, died, entry=entry)
ends, entries = np.array([3.0, 5, 6, 8, 9, 10, 12, 14]), np.array([0.0, 0, 5, 0, 3, 6, 5, 0])
deaths, dose = np.array([1, 1, 1, 0, 1, 1, 0, 1]), np.array([1.0, 0, 2, 1, 0, 3, 1, 0])
rows = pd.DataFrame({"end": ends, "entry": entries, "died": deaths, "dose": dose})
model = PHReg(ends, dose[:, None], deaths, entry=entries).fit().params[0]
cox = CoxPHFitter().fit(rows, "end", "died", entry_col="entry").params_["dose"]


def by_hand(is_in):
    def loss(slope):
        risk = [np.exp(slope * dose[(ends >= at) & is_in(entries, at)]).sum() for at in ends[deaths == 1]]
        return np.log(risk).sum() - slope * dose[deaths == 1].sum()

    return minimize_scalar(loss).x


at_risk = int(other.event_table.at_risk[5.0])
print(f"statsmodels: curve {curve.surv_prob[0]:.4f} of {curve.n_risk[0]:.0f} at risk, log hazard ratio {model:.4f}")
print(f"lifelines: curve {other.predict(5.0):.4f} of {at_risk} at risk, log hazard ratio {cox:.4f}")
print(f"by hand: entered before the death {by_hand(np.less):.4f}, on its day too {by_hand(np.less_equal):.4f}")
PY
