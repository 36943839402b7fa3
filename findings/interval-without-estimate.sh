#!/usr/bin/env bash
# zepid 0.9.1: intervals that do not hold their estimate or leave the possible range. The number needed to treat is the
# inverse of a risk difference whose interval has 0 inside: the two inverted ends are no interval. 0 of 10 has no width,
# and a sensitivity ends above 1.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "number needed to treat: 7.50, interval -5.57 to 2.24
risk, 0 of 10: 0.00, interval 0.00 to 0.00
sensitivity, 9 of 10: 0.90, interval 0.71 to 1.09" numpy==1.26.4 pandas==2.3.3 scipy==1.17.1 statsmodels==0.15.0 matplotlib==3.11.2 setuptools==65.5.0 zepid==0.9.1 <<'PY'
from zepid.calc import number_needed_to_treat, risk_ci, sensitivity

for name, found in (
    ("number needed to treat", number_needed_to_treat(5, 10, 3, 12)),
    ("risk, 0 of 10", risk_ci(0, 10)),
    ("sensitivity, 9 of 10", sensitivity(9, 10)),
):
    print(f"{name}: {found[0]:.2f}, interval {found[1]:.2f} to {found[2]:.2f}")
PY
