#!/usr/bin/env bash
# fhir.resources 8.3.0: the digits of a decimal are not kept from JSON to JSON, although the standard says that 1.50 and
# 1.5 differ in their precision. Eighteen digits before the point are rounded to seventeen.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "1.50 -> 1.5
0.00000010 -> 1e-7
123456789012345678.5 -> 123456789012345680" fhir.resources==8.3.0 fhir-core==1.1.12 <<'PY'
import re
from fhir.resources.observation import Observation

for digits in ("1.50", "0.00000010", "123456789012345678.5"):
    text = '{"resourceType":"Observation","status":"final","code":{"text":"CRP"},"valueQuantity":{"value":%s}}' % digits
    written = Observation.model_validate_json(text).model_dump_json()
    print(digits, "->", re.search(r'"value":([^}]*)}', written).group(1))
PY
