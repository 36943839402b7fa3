"""Reads the public tables of the experiments. A process parses each file only once for each contract.

The caller gives the folder, as `--data` or in GLOBAL_LAYERS_DATA. It has `heart/` and `covertype/` with the published
files. All seeds and methods share the arrays, so they are read-only.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from sklearn.model_selection import train_test_split

from protos.errors import ConfigurationError
from site_agent.trainer.data.contract import Contract, read_contract
from site_agent.trainer.data.dataset import Dataset, SplitRows
from site_agent.trainer.data.tables import Table, read_table

Sites: TypeAlias = dict[str, Dataset]

_HOSPITALS: Final = Path(__file__).parents[3] / "deploy" / "data"
_EXPERIMENTS: Final = Path(__file__).parent / "contracts"


@cache
def hospital_contract(name: str) -> Contract:
    """Return the example contract from the documentation for one of the three heart studies."""
    return read_contract(_HOSPITALS / f"{name}.yaml")


@cache
def experiment_contract(name: str) -> Contract:
    """Return a contract that is used only by the experiments."""
    return read_contract(_EXPERIMENTS / f"{name}.yaml")


@cache
def public_table(path: Path, contract: Contract) -> Table:
    """Return the table in a file under a contract. The first call reads and checks the file.

    Raises:
        ConfigurationError: the file is not there.
        DataError: it does not meet the contract.
    """
    if not path.is_file():
        raise ConfigurationError(
            what=f"The public table {path} is not there.",
            consequence="No experiment on it was run.",
            remedy="Give the folder that holds heart/ and covertype/ as --data.",
        )
    return read_table(path, contract)


def paper_split(rows: int, seed: int) -> SplitRows:
    """Split rows as the paper's experiment does, not stratified."""
    remaining, test = train_test_split(np.arange(rows), test_size=0.33, random_state=seed)
    training, validation = train_test_split(remaining, test_size=0.1, random_state=seed)
    return SplitRows(training=training, validation=validation, test=test)
