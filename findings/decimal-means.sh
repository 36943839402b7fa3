#!/usr/bin/env bash
# pyarrow 26.0.1, polars 2.1.0, duckdb 2.0.0: the mean of amounts with two decimals has two decimals in one. One decimal less
# is cut off, rounded half to even, or rounded half up. Guess: a mean with all its digits, and rounding in all.
source "$(dirname -- "${BASH_SOURCE[0]}")/observe.sh"
observe "pyarrow: mean 0.21, one decimal ['0.1', '0.2', '0.2']
polars: mean 0.206666, one decimal ['0.1', '0.2', '0.3']
duckdb: mean 0.206666, one decimal ['0.1', '0.3', '0.3']" numpy==2.4.6 pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.0 <<'PY'
from decimal import Decimal

import duckdb
import polars
import pyarrow
import pyarrow.compute

amounts = [Decimal("0.10"), Decimal("0.25"), Decimal("0.27")]
array = pyarrow.array(amounts, pyarrow.decimal128(5, 2))
series = polars.Series(amounts, dtype=polars.Decimal(5, 2))
table = "(VALUES (0.10::DECIMAL(5, 2)), (0.25), (0.27)) AS amounts (a)"
means = {
    "pyarrow": pyarrow.compute.mean(array).as_py(),
    "polars": series.mean(),
    "duckdb": duckdb.sql(f"SELECT avg(a) FROM {table}").fetchall()[0][0],
}
shorter = {
    "pyarrow": array.cast(pyarrow.decimal128(5, 1), safe=False).to_pylist(),
    "polars": series.cast(polars.Decimal(5, 1)).to_list(),
    "duckdb": [row[0] for row in duckdb.sql(f"SELECT a::DECIMAL(5, 1) FROM {table}").fetchall()],
}
for name, mean in means.items():
    print(f"{name}: mean {str(mean)[:8]}, one decimal {[str(one) for one in shorter[name]]}")
PY
