#!/usr/bin/env bash
# fhir.resources 8.3.0: a code that the standard does not have passes the validation of a resource. Observation.status,
# Patient.gender and Quantity.comparator have required value sets, so a filter on `entered-in-error` sees only spellings
# that happen to be right.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "bogus
weiblich
kleiner" fhir.resources==8.3.0 fhir-core==1.1.12 <<'PY'
from fhir.resources.observation import Observation
from fhir.resources.patient import Patient

observation = {
    "resourceType": "Observation",
    "status": "bogus",
    "code": {"text": "CRP"},
    "valueQuantity": {"value": 5, "comparator": "kleiner"},
}
found = Observation.model_validate(observation)
print(found.status)
print(Patient.model_validate({"resourceType": "Patient", "gender": "weiblich"}).gender)
print(found.valueQuantity.comparator)
PY
