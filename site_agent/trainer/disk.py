"""Writes and reads the trainer's files: the site's secret, saved models and states, and the rounds that were answered.

A file is written completely or not at all, with mode 0600. A saved model (checkpoint) is a safetensors file, whose
header has facts as JSON and a digest of all content. So a damaged file is refused, and nothing is unpickled. The rules:

* the site's secret is made once from the operating system's random numbers. It is the source of the private random
  draws, and it is in no message, log, report or export. A secret that others may read is refused and never replaced;
* the state of a run is written completely before the trainer sends anything of its round;
* a damaged state is ignored. Training never continues from a state of other rows than the table's current ones;
* a return to a round deletes the states saved after it, because those rounds are made again;
* the first round of a run, the answered rounds and the released numbers are in one SQLite file (host/record_store.py);
* a round is answered for one set of shared values. The request is recorded before it is answered, so a gate that an
  attacker controls gets only the updates of an approved plan.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import structlog
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as serialise_tensors

from host.durable import MODELS_RESERVE_BYTES, make_folder, opened_folder, replace_in, require_room
from host.record_store import Store
from protos.errors import ConfigurationError, DataError, UnavailableError
from protos.plan.plan import Plan
from protos.wire.messages import MOST_ROUNDS, MalformedMessage
from site_agent.trainer.failures import START_AGAIN
from site_agent.trainer_socket import Train

if TYPE_CHECKING:
    from torch import Tensor

SECRET_BYTES: Final = 32
RECORDS: Final = "records.sqlite"
_DRAWS_FILE: Final = "site.secret"


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file `path` with this content, mode 0600. After a crash, the old or the new file is complete.

    The content is written to a temporary file in the same folder, which is synchronised and renamed. Then the folder's
    entry is synchronised. Temporary files of an earlier crash are removed first. Only one process may write a file.
    Files that the administrator writes belong to the owner of the folder (`give_to_owner`).

    Raises:
        ConfigurationError: root would follow another user's link (`opened_folder`).
        UnavailableError: the disk cannot be written; the old file is unchanged.
    """
    partial = f".{path.name}.partial"
    try:
        make_folder(path.parent)
        with opened_folder(path.parent) as folder:
            with suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=folder)
            require_room(path.parent, len(content), MODELS_RESERVE_BYTES)
            replace_in(folder, path.name, content, partial=partial, mode=0o600)
    except OSError as cause:
        raise UnavailableError(
            what=f"{path.name} cannot be written: {cause.strerror}.",
            consequence="Earlier saved states are unchanged, and nothing more was sent.",
            remedy=f"Free disk space, or let the trainer's user account write into {path.parent}. {START_AGAIN}",
        ) from cause


def array_digest(subject: str, arrays: Iterable[tuple[str, npt.NDArray[np.generic]]]) -> str:
    """Return the BLAKE3 digest, in hexadecimal, of a subject and of names, types, shapes and bytes, in order."""
    digest = blake3()
    for part in (subject.encode(), *(piece for name, array in arrays for piece in _pieces(name, array))):
        # Each piece is written after its length, so that two different lists never have the same bytes.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _pieces(name: str, array: npt.NDArray[np.generic]) -> tuple[bytes, bytes, bytes, memoryview]:
    # A view is hashed, because a copy could need too much memory.
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return name.encode(), array.dtype.str.encode(), repr(array.shape).encode(), content


def site_secret(folder: Path) -> bytes:
    """Return this site's secret number of 32 bytes from the trainer's folder. The first call creates the secret.

    Raises:
        UnavailableError: the disk cannot be written, others may read the file, or it is no secret of 32 bytes.
    """
    path = folder / _DRAWS_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        write_whole(path, secrets.token_bytes(SECRET_BYTES))
        return site_secret(folder)
    except OSError as cause:
        raise _refused(path, f"cannot be read: {cause.strerror}") from cause
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_mode & 0o077:
            mend = f"If you trust the content of this file, run `chmod 600 {path}`. Otherwise restore it"
            raise _refused(path, "can be read by other accounts, or is not a regular file", mend)
        content = file.read(SECRET_BYTES + 1)
    if len(content) != SECRET_BYTES:
        raise _refused(path, f"has another length than {SECRET_BYTES} bytes")
    return content


def _refused(path: Path, because: str, mend: str = "Restore the file") -> UnavailableError:
    # A person can correct it, so the run waits for this site, and does not end for all.
    return UnavailableError(
        what=f"The file with this site's secret number, {path}, {because}.",
        consequence="Nothing was trained and nothing was sent. The run waits.",
        remedy=f"{mend} from the newest backup. {START_AGAIN}",
    )


LARGEST_CHECKPOINT_BYTES: Final = 1 << 33
_CHECKPOINT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_KEY: Final = "global-layers"

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
Tensors: TypeAlias = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A saved model: arrays by name, and facts about the run."""

    tensors: Tensors
    facts: Mapping[str, Json]


def save(directory: Path, name: str, tensors: Tensors, facts: Mapping[str, Json]) -> Path:
    """Write a checkpoint. An earlier file of the same name is replaced only when the new file is complete.

    `directory` is created with mode 0700 if absent. `name` has lower-case letters, digits, dots, underscores and
    hyphens. `facts` are values that JSON can store, with finite numbers.

    Raises:
        UnavailableError: the disk cannot be written; earlier checkpoints are unchanged.
    """
    text = json.dumps(facts, allow_nan=False, sort_keys=True, ensure_ascii=True)
    arrays = {key: np.asarray(value, order="C") for key, value in tensors.items()}
    if any(array.dtype.kind not in "fiub" for array in arrays.values()):
        raise ValueError("a checkpoint holds numbers only")
    header = json.dumps({"version": 1, "facts": text, "digest": _digest(arrays, text)})
    path = _path(directory, name)
    write_whole(path, serialise_tensors(arrays, metadata={_KEY: header}))
    return path


def load(directory: Path, name: str) -> Checkpoint:
    """Read a checkpoint. Raise ConfigurationError if there is none, or if it is damaged or of another version."""
    path = _path(directory, name)
    try:
        with path.open("rb") as file:
            # The size of the file is checked, because this much memory will be reserved. The largest size could be too
            # much.
            raw = file.read(min(os.fstat(file.fileno()).st_size, LARGEST_CHECKPOINT_BYTES) + 1)
    except OSError as cause:
        raise ConfigurationError(
            what=f"The checkpoint {path.name} cannot be read: {cause.strerror}.",
            consequence="No model was loaded and nothing was sent.",
            remedy="First train a model, or name a state folder with a checkpoint that your user account may read.",
        ) from cause
    try:
        return _parse(raw)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as cause:
        raise ConfigurationError(
            what=f"The checkpoint {path.name} is damaged or from another version of this program.",
            consequence="No model was loaded and nothing was sent.",
            remedy="Restore the file from a backup, use another checkpoint, or train again.",
        ) from cause


def _parse(raw: bytes) -> Checkpoint:
    if len(raw) > LARGEST_CHECKPOINT_BYTES:
        raise ValueError("larger than any checkpoint")
    tensors = parse_tensors(raw)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"][_KEY])
    if header["version"] != 1 or header["digest"] != _digest(tensors, header["facts"]):
        raise ValueError("another version, or not the bytes that were saved")
    return Checkpoint(tensors=tensors, facts=json.loads(header["facts"]))


def _digest(tensors: Tensors, facts: str) -> str:
    return array_digest(f"global-layers checkpoint 1 {facts}", sorted(tensors.items()))


def _path(directory: Path, name: str) -> Path:
    if not _CHECKPOINT_NAME.fullmatch(name):
        raise ValueError("a checkpoint's name has lower-case letters, digits, dots, underscores and hyphens only")
    return directory / f"{name}.safetensors"


_MOST: Final = 8  # limited, so that a coordinator that requires a saved state in every round cannot fill the disk
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answered (plan TEXT, round INTEGER, request TEXT, PRIMARY KEY (plan, round));
CREATE TABLE IF NOT EXISTS begun (run TEXT PRIMARY KEY, rows TEXT, round INTEGER);
CREATE TABLE IF NOT EXISTS counts (kind TEXT, rows INTEGER, place INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS contents (content TEXT PRIMARY KEY, digests BLOB);
CREATE TABLE IF NOT EXISTS used (place INTEGER PRIMARY KEY, run TEXT, facts TEXT, head TEXT);
"""


def open_records(folder: Path) -> Store:
    """Open the file of what the trainer must not forget, in the trainer's folder. Raises StoreError."""
    store = Store(folder / RECORDS, consequence="Nothing was trained and nothing was sent.")
    store.define(_SCHEMA)
    return store


@contextmanager
def recording(folder: Path) -> Iterator[Store]:
    """Open the records. What the block writes is on disk at its end, or nothing of it. Raises StoreError."""
    store = open_records(folder)
    try:
        with store.transaction():
            yield store
    finally:
        store.close()


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedStudy:
    """The state of a study before a round: its tensors, and all other values as JSON."""

    tensors: dict[str, Tensor] = field(repr=False)
    facts: Mapping[str, Json]


class Saves:
    """The saved states of one run, and the round in which this site began.

    If the disk cannot be written, functions raise UnavailableError or StoreError.
    """

    def __init__(self, state: Path, run: str, plan: Plan, rows: str) -> None:
        """Read which rounds have a saved state, and delete the states of other runs.

        `rows` is the digest of this site's data set.

        Raises:
            DataError: the run began with other rows.
        """
        self._folder, self._run, self._plan, self._rows = state / "saves" / run, run, plan.digest.hex(), rows
        self._records = open_records(state / "models")
        for other in self._folder.parent.glob("*"):
            if other != self._folder and other.is_dir():
                shutil.rmtree(other)
        self._records.write("DELETE FROM begun WHERE run != ?", run)
        self.began = self._read_began()
        numbers = [int(path.stem.removeprefix("before-")) for path in self._folder.glob("before-*.safetensors")]
        self._held = {number for number in numbers if self._is_ours(number)}

    @property
    def held(self) -> tuple[int, ...]:
        """The rounds from whose saved state this site can continue, including the round in which it began."""
        return tuple(sorted(self._held | ({self.began} if self.began is not None else set())))

    def begin(self, number: int) -> None:
        """Store on disk in which round this site begins. Only the first call for a study has an effect."""
        if self.began is None:
            self._records.write("INSERT INTO begun VALUES (?, ?, ?)", self._run, self._rows, number)
            self.began = number

    def write(self, number: int, study: SavedStudy) -> None:
        """Store on disk the state before a round. After an UnavailableError, earlier states are unchanged."""
        arrays = {name: tensor.cpu().numpy() for name, tensor in study.tensors.items()}
        save(self._folder, _name(number), arrays, {"plan": self._plan, "rows": self._rows, "study": study.facts})
        self._held.add(number)
        for earlier in sorted(self._held)[:-_MOST]:
            self._remove(earlier)

    def read(self, number: int) -> SavedStudy | None:
        """Return the state before a round, or None for the first round. A damaged file is a ConfigurationError."""
        if number not in self._held:
            return None
        found, tensors = load(self._folder, _name(number)), dict[str, "Tensor"]()
        study = found.facts["study"]
        assert isinstance(study, Mapping)
        if found.tensors:
            from torch import from_numpy  # an idle trainer does not load torch

            tensors = {name: from_numpy(array.copy()) for name, array in found.tensors.items()}
        return SavedStudy(tensors=tensors, facts=study)

    def forget(self, *, before: int = 0, after: int = MOST_ROUNDS) -> None:
        """Delete states of rounds that the federation never repeats, or from which the study does not continue."""
        for number in [number for number in self._held if not before <= number <= after]:
            self._remove(number)

    def _remove(self, number: int) -> None:
        self._held.remove(number)
        (self._folder / f"{_name(number)}.safetensors").unlink(missing_ok=True)

    def _is_ours(self, number: int) -> bool:
        try:
            facts = load(self._folder, _name(number)).facts
            if (facts["plan"], facts["rows"]) == (self._plan, self._rows):
                return True
        except (ConfigurationError, KeyError):
            pass
        structlog.get_logger().warning("saved_state_damaged", round=number + 1)
        return False

    def _read_began(self) -> int | None:
        found = self._records.read("SELECT rows, round FROM begun WHERE run = ?", self._run)
        if found and found[0][0] != self._rows:
            raise DataError(
                what="This site's table, contract or split has changed since the start of this study.",
                consequence="Nothing was sent since this change. The study waits for this site.",
                remedy=(
                    "Restore the earlier table, contract and split, then start the site agent again. If the change "
                    "must stay, ask the federation office to end the run and to issue a new version of the plan."
                ),
            )
        return found[0][1] if found else None


def _name(number: int) -> str:
    return f"before-{number:010d}"


class AnsweredRounds:
    """The requests that the trainer has answered for one plan."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._records, self._plan = open_records(folder), plan.digest.hex()

    def admit(self, train: Train) -> None:
        """Check that a request may be answered, and record it. Raise MalformedMessage at another one, or StoreError."""
        request = f"{train.stage} {train.layers} {blake3(train.payload).hexdigest()}"
        # The record is not synced, because written rows survive the end of the process, and an attacker in the gate
        # process cannot cut the power.
        with self._records.transaction(syncs=False):
            known = self._records.read(
                "SELECT request FROM answered WHERE plan = ? AND round = ?", self._plan, train.round
            )
            if not known:
                self._records.write("INSERT INTO answered VALUES (?, ?, ?)", self._plan, train.round, request)
        if known and known[0][0] != request:
            raise MalformedMessage("another question for a round that was answered")
