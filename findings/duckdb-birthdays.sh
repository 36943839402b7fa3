#!/usr/bin/env bash
# duckdb 2.0.0: a child of 29 February is one year old on 28 February for date_sub, and 11 months and 28 days for age, which is
# 358 days when Python reads it. Guess: no complete year in both, and 365 days.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "date_sub: 1 year
age as text: 11 months 28 days
age in Python: 358 days
days between: 365" duckdb==2.0.0 <<'PY'
import duckdb

days = "DATE '2004-02-29' AS born, DATE '2005-02-28' AS seen"
query = "SELECT date_sub('year', born, seen), age(seen, born)::VARCHAR, age(seen, born), seen - born"
years, text, age, between = duckdb.sql(f"{query} FROM (SELECT {days})").fetchall()[0]
print(f"date_sub: {years} year\nage as text: {text}\nage in Python: {age.days} days\ndays between: {between}")
PY
