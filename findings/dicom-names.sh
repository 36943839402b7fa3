#!/usr/bin/env bash
# pydicom 3.0.2: DICOM lets a program leave out the empty parts at a name's end. pydicom compares the characters, so one
# person has two names. A name equals its text, but a set of texts does not contain it. Guess: equal in all four lines.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "Doe^John and Doe^John^^^: False
Doe^John and the text Doe^John: True
in a list of texts: True
in a set of texts: False" pydicom==3.0.2 <<'PY'
from pydicom.valuerep import PersonName

name = PersonName("Doe^John")
print("Doe^John and Doe^John^^^:", name == PersonName("Doe^John^^^"))
print("Doe^John and the text Doe^John:", name == "Doe^John")
print("in a list of texts:", name in ["Doe^John"])
print("in a set of texts:", name in {"Doe^John"})
PY
