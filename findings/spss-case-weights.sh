#!/usr/bin/env bash
# pyreadstat 1.3.7: an SPSS file whose cases are weighted (WEIGHT BY n) is read without a word of the weight. This file
# stands for 60 patients there; its two rows are read as two. The header names the weight at byte 76, as a place among
# the variables from 1; 0 means no weight.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "in the file: variable 2 is the weight
rows read: 2
told about a weight: False" pyreadstat==1.3.7 pandas==3.1.1 <<'PY'
import struct

import pandas as pd
import pyreadstat

pyreadstat.write_sav(pd.DataFrame({"died": [0.0, 1.0], "n": [40.0, 20.0]}), "counts.sav")
with open("counts.sav", "r+b") as file:
    file.seek(76)
    file.write(struct.pack("<i", 2))
    file.seek(76)
    print("in the file: variable", *struct.unpack("<i", file.read(4)), "is the weight")
rows, told = pyreadstat.read_sav("counts.sav")
print("rows read:", len(rows))
print("told about a weight:", any("weight" in f"{name} {value}" for name, value in vars(told).items()))
PY
