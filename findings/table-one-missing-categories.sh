#!/usr/bin/env bash
# tableone 0.9.6: with `missing=True` the rows without an answer are counted in the column Missing for a number, but as a
# category of its own, in the denominator of all percentages, for a category. The column Missing then stays empty.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "n | 20
answer, n (%) | None | 5 (25.0)
answer, n (%) | no | 5 (25.0)
answer, n (%) | yes | 10 (50.0)
age, mean (SD) | 1 | 60.0 (5.6)" numpy==2.4.6 pandas==2.3.3 scipy==1.17.1 statsmodels==0.15.0 tableone==0.9.6 <<'PY'
import pandas
from tableone import TableOne

answers, ages = ["yes"] * 10 + ["no"] * 5 + [None] * 5, [*range(51, 70), None]
table = pandas.DataFrame({"answer": answers, "age": ages})
found = TableOne(table, columns=["answer", "age"], categorical=["answer"], missing=True).tableone
for names, cells in found.iterrows():
    print(" | ".join(part.strip() for part in (*names, *map(str, cells)) if part.strip()))
PY
