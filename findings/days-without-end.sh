#!/usr/bin/env bash
# duckdb 2.0.0 for Python: a day without end is the last day of the year 9999, and one without beginning the first of the
# year 1, as if somebody had written these days. As text they are infinity and -infinity.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "0001-01-01 2020-02-29 9999-12-31
-infinity 2020-02-29 infinity" duckdb==2.0.0 <<'PY'
import duckdb

days = "SELECT unnest([DATE '-infinity', DATE '2020-02-29', DATE 'infinity']) AS day"
print(*(day for (day,) in duckdb.sql(days).fetchall()))
print(*(day for (day,) in duckdb.sql(f"SELECT day::VARCHAR FROM ({days})").fetchall()))
PY
