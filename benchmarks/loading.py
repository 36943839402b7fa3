"""Measures time and memory to read and encode a large table, compared with pandas: `python benchmarks/loading.py`.

The table is made up: four fifths of its columns are numbers, of which a twentieth of the cells is empty. The others are
codes. Three processes then do the same work on it, one after the other, each in a new interpreter:

* `ours`: read and check every cell against a contract, split, fit on training rows, encode to float32;
* `pandas`: read_csv, train_test_split, fill with training medians, standardise, one-hot, to float32, without any check;
* `checked`: the same with pandas, and for each column the checks of our contract: its type, its range or codes, the
  wrong rows, limits and shares of the training rows for later. Each check is one operation on the whole column.

It measures the wall clock, the process's own processor seconds, which other programs disturb less, and its largest
resident memory above that of its imports. `ratio` is ours divided by the other, for processor seconds and for memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

if TYPE_CHECKING:
    import pandas

MIB = 1 << 20
CODES = ["a", "b", "c", "d", "e"]
BLOCK_ROWS = 50_000


def is_coded(column: int) -> bool:
    """Return whether a column of the made-up table contains codes."""
    return column % 5 == 4


def make_table(folder: Path, rows: int, columns: int) -> None:
    """Write table.csv and contract.yaml into the folder."""
    import pyarrow as arrow
    import pyarrow.csv as csv

    generator = np.random.default_rng(0)
    names = [f"c{column}" for column in range(columns)]
    with (folder / "table.csv").open("wb") as file:
        for start in range(0, rows, BLOCK_ROWS):
            count = min(BLOCK_ROWS, rows - start)
            made = {}
            for column, name in enumerate(names):
                if is_coded(column):
                    made[name] = arrow.array(np.array(CODES)[generator.integers(5, size=count)])
                else:
                    values = np.round(generator.normal(100, 15, size=count), 3)
                    made[name] = arrow.array(values, mask=generator.random(count) < 0.05)
            made["y"] = arrow.array(generator.integers(0, 2, size=count))
            options = csv.WriteOptions(include_header=start == 0, quoting_style="none")
            csv.write_csv(arrow.table(made), file, options)
    features = [
        {"name": name, "role": "feature", "type": "categorical", "codes": list(CODES), "encoding": "one-hot"}
        if is_coded(column)
        else {"name": name, "role": "feature", "type": "numeric", "range": [0, 200], "missing": "median"}
        for column, name in enumerate(names)
    ]
    target = {"name": "y", "role": "target", "task": "binary", "positive": [1], "negative": [0]}
    contract = {"format": {"header": True}, "columns": [*features, target]}
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract, sort_keys=False))


def ours(folder: Path) -> int:
    """Return the rows that this project's code reads and encodes."""
    from site_agent.hospital import Split
    from site_agent.trainer.data.contract import read_contract
    from site_agent.trainer.data.dataset import prepare

    dataset, _ = prepare(folder / "table.csv", read_contract(folder / "contract.yaml"), Split(seed=0))
    return len(dataset.training) + len(dataset.validation) + len(dataset.test)


def plain_pandas(folder: Path) -> int:
    """Return the rows that a short script with pandas reads and encodes."""
    return with_pandas(folder, is_checked=False)


def checked_pandas(folder: Path) -> int:
    """Return the rows that a careful script with pandas prepares, which makes the same checks as our reader."""
    return with_pandas(folder, is_checked=True)


def with_pandas(folder: Path, *, is_checked: bool) -> int:
    """Read the table with pandas, check it if requested, split it, fit the encoding, and encode the rows."""
    import pandas
    from sklearn.model_selection import train_test_split

    frame = pandas.read_csv(folder / "table.csv")
    flawed = checked(frame) if is_checked else 0
    assert not flawed
    target = frame.pop("y").to_numpy(dtype=np.float32)
    rest, test = train_test_split(np.arange(len(frame)), test_size=0.33, random_state=0)
    training, validation = train_test_split(rest, test_size=0.1, random_state=0)
    numbers = frame.columns[[not is_coded(column) for column in range(frame.shape[1])]]
    if is_checked:
        quantiles = frame.iloc[training][numbers].quantile(np.linspace(0, 1, 11))
        shares = [frame[name].iloc[training].value_counts(normalize=True) for name in frame if name not in numbers]
        assert len(quantiles) == 11
        assert all(len(share) == len(CODES) for share in shares)
    fitted = frame.iloc[training][numbers]
    frame[numbers] = frame[numbers].fillna(fitted.median())
    fitted = frame.iloc[training][numbers]
    frame[numbers] = (frame[numbers] - fitted.mean()) / fitted.std(ddof=0)
    encoded = pandas.get_dummies(frame, dtype=np.float32).to_numpy(dtype=np.float32)
    parts = [(encoded[part], target[part]) for part in (training, validation, test)]
    return sum(len(features) for features, _ in parts)


def checked(frame: pandas.DataFrame) -> int:
    """Return the number of cells that do not have the declared type, range or codes."""
    flawed = 0
    for column, name in enumerate(frame.columns):
        values = frame[name]
        if name == "y":
            is_wrong = ~values.isin([0, 1])
        elif is_coded(column):
            is_wrong = ~values.isin(CODES) & values.notna()
        else:
            assert values.dtype == np.float64
            is_wrong = (values < 0) | (values > 200) | np.isinf(values)
        flawed += len(np.flatnonzero(is_wrong))
    return flawed


CASES: dict[str, Callable[[Path], int]] = {"ours": ours, "pandas": plain_pandas, "checked": checked_pandas}


def measured(case: str, folder: Path) -> dict[str, float]:
    """Measure one case in a separate process."""
    done = subprocess.run(
        [sys.executable, __file__, "--case", case, "--folder", str(folder)], check=True, capture_output=True, text=True
    )
    return {name: float(value) for name, value in json.loads(done.stdout).items()}


def measure_here(case: str, folder: Path) -> None:
    """Run a case in this process and print its figures as JSON."""
    import pandas  # noqa: F401  # imported before the clock starts, as are those of the next line
    import pyarrow.compute  # noqa: F401
    import sklearn.model_selection  # noqa: F401

    import site_agent.trainer.data.dataset  # noqa: F401

    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, computed = time.perf_counter(), time.process_time()
    rows = CASES[case](folder)
    seconds, computed = time.perf_counter() - start, time.process_time() - computed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"rows": rows, "s": seconds, "computed_s": computed, "peak_mib": (peak - idle) * 1024 / MIB}))


def main() -> None:
    """Make the table, measure all cases, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        measure_here(options.case, options.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_table(folder, options.rows, options.columns)
        parts = [f"rows={options.rows}", f"columns={options.columns}"]
        parts.append(f"csv_mib={(folder / 'table.csv').stat().st_size / MIB:.0f}")
        figures = {case: measured(case, folder) for case in CASES}
        for case, found in figures.items():
            assert found.pop("rows") == options.rows
            parts += [f"{case}_rows_per_s={options.rows / found['s']:.0f}"]
            parts += [f"{case}_{key}={value:.4g}" for key, value in found.items()]
        for case in ("pandas", "checked"):
            for key in ("computed_s", "peak_mib"):
                parts += [f"ratio_to_{case}_{key}={figures['ours'][key] / figures[case][key]:.2f}"]
        print(" ".join(parts))


if __name__ == "__main__":
    main()
