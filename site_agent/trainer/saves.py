"""Stores the states from which a study continues after a crash. The states are on this site's disk only.

There is one file for each round to which the federation can return, written like a checkpoint (checkpoints.py). A small
file records in which round and with which rows this site began. The rules:

* a state is written completely before the trainer sends anything of its round;
* a damaged state is ignored. Training never continues from a state of other rows than the table's current ones;
* a return to a round deletes the states saved after it, because those rounds are made again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import structlog
from torch import Tensor, from_numpy

from protos.errors import ConfigurationError, DataError
from protos.plan.plan import Plan
from site_agent.trainer.checkpoints import Json, load, save
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.failures import unfit
from site_agent.trainer.trainer_files import array_digest, write_whole
from site_agent.trainer.training.state import State

FORMAT: Final = 1
_MOST: Final = 8  # limited, so that a coordinator that requires a saved state in every round cannot fill the disk


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedStudy:
    """The state of a study before a round: its tensors, and all other values as JSON."""

    tensors: State = field(repr=False)
    facts: Mapping[str, Json]


class Saves:
    """The saved states of one run. If the disk cannot be written, functions raise UnavailableError."""

    def __init__(self, folder: Path, plan: Plan, dataset: Dataset) -> None:
        """Read which rounds have a saved state, and delete the states of other runs.

        Raises:
            DataError: the run began with other rows than `dataset` has.
            ConfigurationError: the record of this site's first round cannot be read.
        """
        self._folder, self._plan, self._rows = folder, plan.digest.hex(), _rows_digest(dataset)
        for other in folder.parent.glob("*"):
            if other != folder and other.is_dir():
                shutil.rmtree(other)
        self.began: int | None = self._read_began()
        numbers = [int(path.stem.removeprefix("before-")) for path in folder.glob("before-*.safetensors")]
        self._held = {number for number in numbers if self._is_ours(number)}

    @property
    def held(self) -> tuple[int, ...]:
        """The rounds from whose saved state this site can continue, including the round in which it began."""
        return tuple(sorted(self._held | ({self.began} if self.began is not None else set())))

    def begin(self, number: int) -> None:
        """Store on disk in which round this site begins. Only the first call for a study has an effect."""
        if self.began is None:
            facts = {"version": FORMAT, "plan": self._plan, "rows": self._rows, "round": number}
            write_whole(self._folder / "began.json", json.dumps(facts).encode())
            self.began = number

    def write(self, number: int, study: SavedStudy) -> None:
        """Store on disk the state before a round. After an UnavailableError, earlier states are unchanged."""
        arrays = {name: tensor.cpu().numpy() for name, tensor in study.tensors.items()}
        facts: dict[str, Json] = {"version": FORMAT, "plan": self._plan, "rows": self._rows}
        save(self._folder, _name(number), arrays, facts | {"study": study.facts})
        self._held.add(number)
        for earlier in sorted(self._held)[:-_MOST]:
            self._remove(earlier)

    def read(self, number: int) -> SavedStudy | None:
        """Return the state before a round, or None for the first round. A damaged file is a ConfigurationError."""
        if number not in self._held:
            return None
        found = load(self._folder, _name(number))
        study = found.facts["study"]
        assert isinstance(study, Mapping)
        tensors: dict[str, Tensor] = {name: from_numpy(array.copy()) for name, array in found.tensors.items()}
        return SavedStudy(tensors=tensors, facts=study)

    def forget_before(self, oldest: int) -> None:
        """Delete the states of rounds before `oldest`, because the federation never repeats these rounds."""
        for number in [number for number in self._held if number < oldest]:
            self._remove(number)

    def forget_after(self, newest: int) -> None:
        """Delete the states of rounds after `newest`, because the study continues again from this round."""
        for number in [number for number in self._held if number > newest]:
            self._remove(number)

    def _remove(self, number: int) -> None:
        self._held.remove(number)
        (self._folder / f"{_name(number)}.safetensors").unlink(missing_ok=True)

    def _is_ours(self, number: int) -> bool:
        """Return whether training can continue from a saved state."""
        try:
            facts = load(self._folder, _name(number)).facts
            if (facts["version"], facts["plan"], facts["rows"]) == (FORMAT, self._plan, self._rows):
                return True
        except (ConfigurationError, KeyError):
            pass
        structlog.get_logger().warning("saved_state_damaged", round=number + 1)
        return False

    def _read_began(self) -> int | None:
        try:
            facts = json.loads((self._folder / "began.json").read_bytes())
            rows, began = str(facts["rows"]), int(facts["round"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as cause:
            # Otherwise this site would start from the beginning in the middle of a run.
            raise unfit(
                what="The file that stores this site's first round in the study cannot be read.",
                remedy="Restore this site's whole state folder from a backup, or inform the federation office.",
            ) from cause
        if rows != self._rows:
            raise DataError(
                what="This site's table, contract or split has changed since the start of this study.",
                consequence="Nothing was sent since this change. The study waits for this site.",
                remedy=(
                    "Restore the earlier table, contract and split, then start the site agent again. If the change "
                    "must stay, ask the federation office to end the run and to issue a new version of the plan."
                ),
            )
        return began


def _rows_digest(dataset: Dataset) -> str:
    parts = {"training": dataset.training, "validation": dataset.validation, "test": dataset.test}
    arrays: list[tuple[str, npt.NDArray[np.generic]]] = []
    for name, part in parts.items():
        arrays += [(f"{name} features", part.features), (f"{name} targets", part.targets)]
    return array_digest("global-layers rows 1", arrays)


def _name(number: int) -> str:
    return f"before-{number:010d}"
