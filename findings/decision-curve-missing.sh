#!/usr/bin/env bash
# dcurves 1.1.7: in a decision curve, a patient whose predicted probability is missing stays in the denominator and counts
# as not treated, so the net benefit falls. Probabilities in percent are taken as they are, and each patient counts as
# treated. With follow-up times, an event code of 2 (another cause) counts as the event.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "all there: 8 patients, net benefit 0.2812
one missing: 8 patients, net benefit 0.1562
without the patient: 7 patients, net benefit 0.1786
in percent: 8 patients, net benefit 0.2188
codes 0 and 1 at time 5: risk 0.4167
codes 0, 1 and 2 at time 5: risk 0.4167" numpy==1.26.4 pandas==2.3.3 scipy==1.17.1 statsmodels==0.15.0 lifelines==0.30.3 matplotlib==3.11.2 setuptools==65.5.0 dcurves==1.1.7 <<'PY'
import pandas as pd
from dcurves import dca

died = [0, 0, 1, 1, 0, 1, 0, 0]
risk = [0.1, 0.2, 0.9, 0.6, 0.3, 0.5, 0.05, 0.2]


def curve(outcomes, risks, **times):
    table = pd.DataFrame({"died": outcomes, "risk": risks, "days": range(1, len(risks) + 1)})
    found = dca(data=table, outcome="died", modelnames=["risk"], thresholds=[0.2], **times)
    return found[found["model"] == "risk"].iloc[0]


missing = [None if place == 2 else value for place, value in enumerate(risk)]
for name, outcomes, risks in (
    ("all there", died, risk),
    ("one missing", died, missing),
    ("without the patient", died[:2] + died[3:], risk[:2] + risk[3:]),
    ("in percent", died, [100 * value for value in risk]),
):
    found = curve(outcomes, risks)
    print(f"{name}: {found['n']} patients, net benefit {found['net_benefit']:.4f}")
for name, codes in (("0 and 1", died), ("0, 1 and 2", [0, 0, 2, 1, 0, 1, 0, 0])):
    found = curve([1, 0, *codes[2:]], risk, time=5, time_to_outcome_col="days")
    print(f"codes {name} at time 5: risk {found['prevalence']:.4f}")
PY
