#!/usr/bin/env bash
# duckdb 2.0.0: of a CSV file whose other rows begin with numbers, a row that begins with # is left out without a word. If
# the others begin with letters, it is a row like all.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "[(1, 2), (5, 6)]
[('a', 2), ('#3', 4), ('b', 6)]
[('1', '2'), ('#3', '4'), ('5', '6')]" duckdb==2.0.0 <<'PY'
from pathlib import Path

import duckdb

for first, last, options in (("1", "5", ""), ("a", "b", ""), ("1", "5", ", comment = '', all_varchar = true")):
    Path("t.csv").write_text(f"id,v\n{first},2\n#3,4\n{last},6\n")
    print(duckdb.sql(f"SELECT * FROM read_csv('t.csv'{options})").fetchall())
PY
