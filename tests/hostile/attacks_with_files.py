"""Hostile files: plans that grow without limit, archives with paths outside, exports that run code.

The attacker writes a file that a program of the toolkit reads.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from pydantic import BaseModel

import host.backup_archive
import protos.plan.documents
from host.backup_archive import Catalogue, Entry, read_catalogue, write_backup
from host.restoring import restore
from protos.errors import OperatorError
from protos.plan.documents import parse_document
from tests.hostile.attack import Attack, in_copy, scratch

Weakened = Callable[[], AbstractContextManager[Any]]


class Words(BaseModel):
    """A document with a list of words."""

    words: list[Any]


@contextmanager
def patched(owner: Any, **changes: Any) -> Iterator[None]:
    """Replace some checks."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setattr(owner, name, value)
        yield


def _nothing(*_: Any, **__: Any) -> None:
    """The check that is missing."""


def _in_a_scratch_folder(weakened: bool, attack: Callable[[Path], bool], without: Weakened) -> bool:
    """Run an attack; three sentences to the operator are a refusal."""
    with scratch() as folder, in_copy(weakened, without):
        try:
            return attack(folder)
        except (OperatorError, ValueError):
            return False


# Documents


def _read(text: str) -> Words:
    return parse_document(text.encode(), Words, source="plan.yaml", consequence="Nothing happened.")


def exploding_aliases(_: Path) -> bool:
    """Have a short document multiply itself: each level refers ten times to the one before."""
    levels = ["&a0 [" + ", ".join(["x"] * 10) + "]"]
    levels += [f"&a{level} [" + ", ".join([f"*a{level - 1}"] * 10) + "]" for level in range(1, 4)]
    found = _read(f"words: [{', '.join(levels)}]")
    return json.dumps(found.words).count("x") == 10 + 100 + 1_000 + 10_000


def tag_that_builds_an_object(_: Path) -> bool:
    """A tag names a function to be called with a text."""
    found = _read("words: [!!python/object/apply:os.getenv [HOME]]")
    return len(found.words) == 1


def deep_nesting(_: Path) -> bool:
    """Two hundred brackets, of which twenty thousand would keep the reader busy for a minute."""
    return len(_read("words: " + "[" * 200 + "]" * 200).words) == 1


@contextmanager
def without_plain_documents() -> Iterator[None]:
    """Anchors, aliases, tags and any depth are read."""
    kept = protos.plan.documents._construct

    def construct(node: Any) -> Any:
        if node.tag.startswith("tag:yaml.org,2002:python"):
            return [construct(item) for item in node.value]
        return kept(node)

    with patched(protos.plan.documents, _refuse_surprises=_nothing, _construct=construct):
        yield


# Backups


def _tar(folder: Path, entries: dict[str, tuple[Entry, bytes]], key: bytes = bytes(32)) -> Path:
    """A backup whose list is right and whose paths or modes are the attacker's."""
    file = folder / "hostile.backup"
    catalogue = Catalogue(
        program="site agent",
        name="a",
        made="2026-01-01",
        software="1",
        state_format=host.backup_archive.LAYOUT,
        entries={at: entry for at, (entry, _) in entries.items()},
    )
    with tarfile.open(file, "w") as archive:
        for at, (entry, content) in entries.items():
            member = tarfile.TarInfo(at)
            member.type = tarfile.REGTYPE if entry.sha256 else tarfile.DIRTYPE
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        listed = host.backup_archive._to_json(catalogue, key)
        member = tarfile.TarInfo(host.backup_archive.CATALOGUE)
        member.size = len(listed)
        archive.addfile(member, io.BytesIO(listed))
    return file


def _folder(mode: int = 0o700) -> tuple[Entry, bytes]:
    return Entry(mode=mode, owner="root", group="root"), b""


def _file(content: bytes, mode: int = 0o600) -> tuple[Entry, bytes]:
    digest = hashlib.sha256(content).hexdigest()
    return Entry(mode=mode, owner="root", group="root", size=len(content), sha256=digest), content


def _restored(file: Path, state: Path) -> None:
    restore(file, read_catalogue(file, bytes(32)), {"state": state}, stamp="now", mark=lambda _: None)


def path_out_of_the_archive(folder: Path) -> bool:
    """A backup holds a file whose path climbs out of the folder that is restored."""
    file = _tar(folder, {"state": _folder(), "state/../escaped": _file(b"found me")})
    _restored(file, folder / "place" / "state")
    return (folder / "place" / "escaped").exists()


def file_that_runs_as_its_owner(folder: Path) -> bool:
    """A backup whose list is right gives a program modes by which anybody runs and writes it as its owner."""
    _restored(_tar(folder, {"state": _folder(0o7777), "state/tool": _file(b"#!", 0o6777)}), folder / "place" / "state")
    return bool((folder / "place" / "state" / "tool").stat().st_mode & 0o6022)


def forged_backup(folder: Path) -> bool:
    """An attacker who can write where backups are kept, but has not the key, puts a backup of their own there."""
    (folder / "state").mkdir()
    file = _tar(folder, {"state": _folder(), "state/approvals": _file(b"approved: Mallet")}, key=b"m" * 32)
    _restored(file, folder / "place" / "state")
    return (folder / "place" / "state" / "approvals").read_text() == "approved: Mallet"


@contextmanager
def without_masked_modes() -> Iterator[None]:
    """Every mode of a backup is restored."""
    with patched(host.backup_archive, _MODES=0o7777):
        yield


@contextmanager
def without_a_seal() -> Iterator[None]:
    """A backup with a correct list of its own files is trusted."""
    with patched(host.backup_archive, _seal=lambda content, key: "the same for every key"):
        yield


def link_in_a_backup(folder: Path) -> bool:
    """A backup is made of a state in which the service's user has put a link to another file."""
    secret = folder / "shadow"
    secret.write_text("secret of another user")
    (folder / "state").mkdir()
    (folder / "state" / "notes").symlink_to(secret)
    write_backup(
        folder / "one.backup",
        {"state": folder / "state"},
        program="site agent",
        name="a",
        made="2026",
        software="1",
        key=bytes(32),
    )
    return b"secret of another user" in (folder / "one.backup").read_bytes()


def changed_backup(folder: Path) -> bool:
    """One bit of a file in a backup is flipped before it is restored."""
    (folder / "state").mkdir()
    (folder / "state" / "approvals").write_text("approved: nobody")
    made = folder / "one.backup"
    write_backup(
        made, {"state": folder / "state"}, program="site agent", name="a", made="2026", software="1", key=bytes(32)
    )
    made.write_bytes(made.read_bytes().replace(b"approved: nobody", b"approved: Mallet"))
    _restored(made, folder / "place" / "state")
    return (folder / "place" / "state" / "approvals").read_text() == "approved: Mallet"


@contextmanager
def without_paths_of_a_backup() -> Iterator[None]:
    """A path in a backup may lead anywhere."""

    def place(target: Path, at: str) -> Path:
        return target / "/".join(PurePosixPath(at).parts[1:])

    with patched(host.backup_archive, _compare=_nothing, _place=place):
        yield


@contextmanager
def without_refused_links() -> Iterator[None]:
    """A backup follows links."""

    def walk(folder: Path, at: PurePosixPath) -> Iterator[tuple[PurePosixPath, Path]]:
        yield at, folder
        for found in sorted(folder.iterdir()):
            yield at / found.name, found.resolve()

    with patched(host.backup_archive, _walk=walk):
        yield


@contextmanager
def without_checksums() -> Iterator[None]:
    """A backup's files are not compared with its list."""

    def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, entry: Entry, place: Path) -> None:
        place.write_bytes(b"".join(host.backup_archive._blocks(archive, member)))

    with patched(host.backup_archive, _compare=_nothing, _extract_file=extract):
        yield


ATTACKS = tuple(
    Attack(name=name, tries=tries, without=missing, run=partial(_in_a_scratch_folder, attack=attack, without=without))
    for name, tries, attack, missing, without in (
        (
            "yaml-bomb",
            "a document multiplies itself by anchors and aliases",
            exploding_aliases,
            "the refusal of anchors, aliases, tags and depth",
            without_plain_documents,
        ),
        (
            "yaml-tag",
            "a document names an object to be built by a tag",
            tag_that_builds_an_object,
            "the refusal of anchors, aliases, tags and depth",
            without_plain_documents,
        ),
        (
            "yaml-depth",
            "a document is nested so deeply that it keeps its reader busy",
            deep_nesting,
            "the refusal of anchors, aliases, tags and depth",
            without_plain_documents,
        ),
        (
            "backup-with-a-path-out",
            "a backup holds a path that climbs out of the restored folder",
            path_out_of_the_archive,
            "the check of paths",
            without_paths_of_a_backup,
        ),
        (
            "backup-with-a-link",
            "the service's user has root put another user's file into a backup, by a link",
            link_in_a_backup,
            "the refusal of links",
            without_refused_links,
        ),
        (
            "backup-with-a-changed-file",
            "a file in a backup is changed before it is restored",
            changed_backup,
            "the checksums of a backup",
            without_checksums,
        ),
        (
            "backup-with-a-program-that-runs-as-its-owner",
            "a backup gives a file modes by which anybody runs and writes it as its owner",
            file_that_runs_as_its_owner,
            "the mask of modes",
            without_masked_modes,
        ),
        (
            "forged-backup",
            "whoever can write where backups are kept puts one of their own there",
            forged_backup,
            "the seal of a backup",
            without_a_seal,
        ),
    )
)
