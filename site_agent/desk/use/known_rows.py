"""Finds rows of the hospital's own table among new patients. A model looks better on rows that trained or tested it.

Rows are compared by the patient's identifier if both tables have it, otherwise by their values.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from site_agent.desk.use.model_in_use import ModelInUse
from site_agent.desk.use.new_rows import read_new_rows
from site_agent.hospital import Hospital
from site_agent.trainer.data.image_folder import temporary_folder
from site_agent.trainer.data.tables import Table


def known_rows(hospital: Hospital, used: ModelInUse, new: Table) -> npt.NDArray[np.bool_]:
    """Return for each row of a new table whether the hospital's own table has it: bool of shape (rows,).

    With identifiers, these are the rows of patients of the own table. Without them, a few equal rows can be chance. So
    equal rows are known only if they are half of the new table or more.

    Raises:
        OperatorError: the hospital's own table cannot be read.
    """
    contract = used.model.preprocessing.contract
    scratch = temporary_folder()
    own = read_new_rows(Path(hospital.data.table), contract, None, has_outcome=True, scratch=scratch).table
    if new.patients is not None and own.patients is not None:
        seen = set(own.patients)
        return np.array([patient in seen for patient in new.patients], dtype=bool)
    values = {row.tobytes() for row in _values(own)}
    equal = np.array([row.tobytes() in values for row in _values(new)], dtype=bool)
    return equal if 2 * int(equal.sum()) >= new.rows else np.zeros_like(equal)


def _values(table: Table) -> npt.NDArray[np.float64]:
    return np.stack([*(table.features[name] for name in sorted(table.features)), *table.marks], axis=1)
