#!/usr/bin/env bash
# pyreadstat 1.3.7: a stay of 25 hours in an SPSS file is read as one o'clock, as all durations of a day or more lose
# their days. Without the library's conversion it is 90,000 seconds.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "converted 01:00:00 23:00:00
not converted 90000.0 82800.0" pandas==3.1.1 pyreadstat==1.3.7 <<'PY'
import pandas
import pyreadstat

pyreadstat.write_sav(pandas.DataFrame({"STAY": [90000.0, 82800.0]}), "table.sav", variable_format={"STAY": "TIME8"})
print("converted", *pyreadstat.read_sav("table.sav")[0].STAY)
print("not converted", *pyreadstat.read_sav("table.sav", disable_datetime_conversion=True)[0].STAY)
PY
