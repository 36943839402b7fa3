#!/usr/bin/env bash
# fhirpathpy 2.2.4: division with remainder does not fit together for negative numbers (-7 is not -3 times 2 plus 1), and
# 5 mg is not 0.005 g, while 1 g is 1000 mg.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "-7 div 2 [-3]
-7 mod 2 [1]
(-7 div 2) * 2 + (-7 mod 2) [-5]
5 'mg' = 0.005 'g' [False]
1 'g' = 1000 'mg' [True]" fhirpathpy==2.2.4 <<'PY'
from fhirpathpy import evaluate

for text in ("-7 div 2", "-7 mod 2", "(-7 div 2) * 2 + (-7 mod 2)", "5 'mg' = 0.005 'g'", "1 'g' = 1000 'mg'"):
    print(text, evaluate({}, text))
PY
