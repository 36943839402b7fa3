#!/usr/bin/env bash
# openpyxl 3.1.5: one column of lengths of stay has up to three Python types, decided by the number format and the value.
# Twelve hours in h:mm are a time of day, thirty hours a date in 1900; in [h]:mm all are lengths of time.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "h:mm time datetime datetime
[h]:mm timedelta timedelta timedelta
d\" d \"h\" h\" time datetime datetime" openpyxl==3.1.5 <<'PY'
from openpyxl import Workbook, load_workbook

for form in ("h:mm", "[h]:mm", 'd" d "h" h"'):
    workbook = Workbook()
    for row, hours in enumerate((12, 30, 48), start=1):
        cell = workbook.active.cell(row, 1)
        cell.value, cell.number_format = hours / 24, form
    workbook.save("stay.xlsx")
    rows = load_workbook("stay.xlsx").active.iter_rows(values_only=True)
    print(form, *(type(value).__name__ for (value,) in rows))
PY
