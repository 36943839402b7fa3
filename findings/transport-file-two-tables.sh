#!/usr/bin/env bash
# pyreadstat 1.3.7: of a SAS transport file with two tables, each of two rows, it reads 57 rows of the first table: the
# headers and rows of the second one count as further rows, with numbers and texts made of their bytes.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "tables 2 rows 57
a row: ER RECOR" pandas==3.1.1 pyreadstat==1.3.7 <<'PY'
import pandas
import pyreadstat

for name in ("ONE", "TWO"):
    table = pandas.DataFrame({"PATIENT": ["A-000001", "A-000002"], "AGE": [50.0, 60.0]})
    pyreadstat.write_xport(table, f"{name}.xpt", table_name=name, file_format_version=5)
one, two = (open(f"{name}.xpt", "rb").read() for name in ("ONE", "TWO"))
content = one + two[240:]  # behind the library's header of three records
open("both.xpt", "wb").write(content)
found = pyreadstat.read_xport("both.xpt")[0]
print("tables", content.count(b"HEADER RECORD*******MEMBER"), "rows", len(found))
print("a row:", found.PATIENT[7])
PY
