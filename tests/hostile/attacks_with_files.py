"""Hostile files: plans that grow without limit. The attacker writes a file that a program of the toolkit reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import protos.plan.documents
from protos.errors import OperatorError
from protos.plan.documents import parse_document
from tests.hostile.attack import Attack, in_copy, patched, scratch

Weakened = Callable[[], AbstractContextManager[Any]]


class Words(BaseModel):
    """A document with a list of words."""

    words: list[Any]


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
    """Have a tag name a function to be called with a text."""
    found = _read("words: [!!python/object/apply:os.getenv [HOME]]")
    return len(found.words) == 1


def deep_nesting(_: Path) -> bool:
    """Nest two hundred brackets, of which twenty thousand would keep the reader busy for a minute."""
    return len(_read("words: " + "[" * 200 + "]" * 200).words) == 1


def without_plain_documents() -> AbstractContextManager[None]:
    """Anchors, aliases, tags and any depth are read."""
    kept = protos.plan.documents._construct

    def construct(node: Any) -> Any:
        if node.tag.startswith("tag:yaml.org,2002:python"):
            return [construct(item) for item in node.value]
        return kept(node)

    return patched(protos.plan.documents, _refuse_surprises=_nothing, _construct=construct)


ATTACKS = tuple(
    Attack(name, missing, update_wrapper(partial(_in_a_scratch_folder, attack=attack, without=without), attack))
    for name, attack, missing, without in (
        ("yaml-bomb", exploding_aliases, "the refusal of anchors, aliases, tags and depth", without_plain_documents),
        (
            "yaml-tag",
            tag_that_builds_an_object,
            "the refusal of anchors, aliases, tags and depth",
            without_plain_documents,
        ),
        ("yaml-depth", deep_nesting, "the refusal of anchors, aliases, tags and depth", without_plain_documents),
    )
)
