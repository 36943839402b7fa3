#!/usr/bin/env bash
# pyreadstat 1.3.7 and pandas 2.3.3: a SAS transport file with the number 1e-80, written by pyreadstat, is read as 0 by
# pyreadstat and as 5.4e-79 by pandas. Neither says that the number is below what the file format can hold.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "pyreadstat 1.1 0.0
pandas 1.1 5.397605346934028e-79" numpy==2.4.6 pandas==2.3.3 pyreadstat==1.3.7 <<'PY'
import pandas
import pyreadstat

pyreadstat.write_xport(pandas.DataFrame({"A": [1.1, 1e-80]}), "table.xpt", file_format_version=5)
print("pyreadstat", *pyreadstat.read_xport("table.xpt")[0].A)
print("pandas", *pandas.read_sas("table.xpt").A)
PY
