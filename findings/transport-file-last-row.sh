#!/usr/bin/env bash
# pandas 3.1.1: the last row of a SAS transport file is lost if it ends in an empty text as long as the row's padding:
# of three patients two are read, without a word. pyreadstat reads all three.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "pyreadstat 3
pandas 2" pandas==3.1.1 pyreadstat==1.3.7 <<'PY'
import pandas
import pyreadstat

table = pandas.DataFrame({"PATIENT": ["A-000001", "A-000002", "A-3"], "NOTE": ["x" * 16, "y" * 16, ""]})
pyreadstat.write_xport(table, "table.xpt", file_format_version=5)
print("pyreadstat", len(pyreadstat.read_xport("table.xpt")[0]))
print("pandas", len(pandas.read_sas("table.xpt", encoding="infer")))
PY
