"""Texts for people are short, and free of words that only insiders understand.

Two sources are read from the code, without running it: the three sentences of every error, and the help of every
event, command and option.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.house.imports import HOUSE, modules, nodes_of

MOST_WORDS: Final = 25
ERROR_KEYS: Final = {"what", "consequence", "remedy"}
# Private or old-fashioned turns, each with the words that a stranger understands.
BANNED: Final = {
    r"\banew\b": "again, from the beginning",
    r"\bafresh\b": "again",
    r"\bnone forgets\b": "removes the saved ...",
    r"\bis told\b|\bare told\b": "receives, is informed",
    r"\bcalls? on\b": "uses",
    r"\bhatch\b": "trainer socket",
    r"\bopponents?\b": "baseline",
    r"\bopinions?\b": "soft targets, prediction",
    r"\bcountersign\w*": "cosign",
    r"\bof all draws\b": "random seed",
    r"\bnobody is there\b|\bis not there any more\b": "is not connected, was removed",
    r"\bsays nothing\b|\bnames nobody\b": "is empty",
    r"\bmake room\b": "free space",
    r"\bmend\b": "correct",
    r"\bbring (it )?back\b": "restore",
    r"\bno room\b": "no space",
    r"\bshall have\b|\bshall stand\b": "for",
    r"\bwhere there is none\b|\bwhere there are none\b": "if there is none",
    r"\bexcludes none\b": "excludes zero",
    r"\blook whether\b": "check whether",
    r"\bhas to be done\b": "you need not do anything",
    r"\bas it was\b|\bas they were\b|\bas it is\b|\bas they are\b": "unchanged",
    r"\bsay so\b|\btold so\b": "report it",
    r"\bcut short\b": "interrupted",
    r"\bnothing (\w+ ){0,4}(left|leaves)\b": "nothing was sent",
}
# Phrases that may not appear in code, comments, tests or pages.
GONE: Final = re.compile(
    r"\b(anew|afresh|opponents?|opinions?|hatch|mend(s|ed|ing)?|(is|are|was|were|be|been) told|told (so|apart)"
    r"|of all draws|excludes none|look whether|sa(y|ys) so|cut short|make room|bring(s|ing)? back|brought back"
    r"|maintenance windows?"
    r"|shall (have|stand)|where there (is|are) none|nobody is there|names nobody"
    r"|nothing (\w+ ){0,4}(left|leaves) (this|the|a|any) (site|machine|computer|hospital))\b",
    re.IGNORECASE,
)
UNREAD: Final = {Path(__file__).name, "walkthrough.md"}  # a person's console is quoted there
# Names that old logs and scripts of operators have.
KEPT: Final = re.compile(r"log_began_anew|step_drawn_afresh")
# A clause as the subject makes a reader search for the verb.
CLAUSE_FIRST: Final = re.compile(r"(What|Whoever|Whether|Where|Who) (?!.*\?$)")


def error_texts() -> Iterator[tuple[str, str]]:
    """Each sentence of each error with its place; {} replaces a value that is filled in."""
    for name, path in modules().items():
        for node in nodes_of(path):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg in ERROR_KEYS:
                        yield from ((f"{name}:{node.lineno}", text) for text in texts_of(keyword.value))


def help_texts() -> Iterator[tuple[str, str]]:
    """The help of each event, each option and each command."""
    for name, path in modules().items():
        for node in nodes_of(path):
            place = f"{name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Name) and node.func.id == "Entry":
                    yield from ((place, text) for argument in node.args[2:] for text in texts_of(argument))
                for keyword in node.keywords:
                    if keyword.arg == "help":
                        yield from ((place, text) for text in texts_of(keyword.value))
            elif isinstance(node, ast.FunctionDef) and is_command(node):
                words = ast.get_docstring(node) or ""
                yield from ((place, part) for part in words.split("\n\n") if not part.startswith("Example:"))


def texts_of(node: ast.expr) -> list[str]:
    """The texts that an expression is made of."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(part.value if isinstance(part, ast.Constant) else "{}" for part in parts)]
        case ast.IfExp(body=first, orelse=second) | ast.BinOp(left=first, right=second):
            return [*texts_of(first), *texts_of(second)]
        case _:
            return []


def is_command(node: ast.FunctionDef) -> bool:
    """Whether a function is a command of a command line, so that its docstring is its help."""
    decorators = (part.func if isinstance(part, ast.Call) else part for part in node.decorator_list)
    return any(isinstance(part, ast.Attribute) and part.attr in {"command", "group"} for part in decorators)


def sentences(text: str) -> list[str]:
    """A text cut after full stops that a capital, a backtick, a dash or a value follows."""
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`{\-(])", re.sub(r"\s+", " ", text).strip())


@cache
def all_texts() -> list[tuple[str, str]]:
    """Everything that this file judges."""
    return [*error_texts(), *help_texts()]


def test_no_sentence_is_long() -> None:
    """A sentence of an error or a help text has at most 25 words."""
    texts = all_texts()
    long = [(place, part) for place, text in texts for part in sentences(text) if len(part.split()) > MOST_WORDS]

    assert len(texts) > 1000
    assert long == []


def test_no_private_words_are_used() -> None:
    """No error and no help text has a banned word; the message names what to write instead."""
    found = [
        (place, text, f"instead: {plain}")
        for place, text in all_texts()
        for banned, plain in BANNED.items()
        if re.search(banned, text, re.IGNORECASE)
    ]

    assert found == []


def test_an_old_turn_stands_nowhere() -> None:
    """Code, comments, tests and pages have none of these phrases. Only earlier results keep theirs."""
    texts = {shown(path): path.read_text() for path in pages_and_code() if path.name not in UNREAD}
    found = [
        f"{place}: {line.strip()}"
        for place, text in texts.items()
        for line in text.splitlines()
        if GONE.search(KEPT.sub("", line))
    ]

    assert len(texts) > 500
    assert found == []


def test_one_sentence_has_one_thought() -> None:
    """No error and no help text joins two thoughts by a semicolon."""
    assert [(place, text) for place, text in all_texts() if "; " in text] == []


def test_a_sentence_begins_with_its_subject() -> None:
    """No sentence has a clause as its subject, as in: what was kept is unchanged."""
    found = [(place, part) for place, text in all_texts() for part in sentences(text) if CLAUSE_FIRST.match(part)]

    assert found == []


def test_no_file_cites_a_page_that_the_repository_does_not_have() -> None:
    """A reader can open every page that code, tests and pages cite."""
    cited = re.compile(r"(?<![\w/.-])([A-Z][A-Z_]+\.md)\b")
    known = {"TABLE.md"} | {path.name for path in HOUSE.rglob("*.md") if ".venv" not in str(path)}  # one is made
    files = pages_and_code(with_results=True)
    missing = {(shown(path), page) for path in files for page in cited.findall(path.read_text()) if page not in known}

    assert len(files) > 500
    assert missing == set()


def test_the_search_finds_what_it_looks_for() -> None:
    """A long sentence is counted and a banned word is found."""
    assert max(len(part.split()) for part in sentences("word " * 30)) > MOST_WORDS
    assert [banned for banned in BANNED if re.search(banned, "The run begins anew.")] == [r"\banew\b"]


def pages_and_code(*, with_results: bool = False) -> list[Path]:
    """Every text of the repository, except the results of benchmarks, which do not change."""
    rooms = (*sorted({name.partition(".")[0] for name in modules()}), "tests", "benchmarks", "docs", "deploy")
    return [
        path
        for room in rooms
        for kind in ("*.py", "*.md", "*.yaml", "*.proto")
        for path in sorted((HOUSE / room).rglob(kind))
        if with_results or "results" not in path.parts
    ]


def shown(path: Path) -> str:
    """A path as a person writes it."""
    return str(path.relative_to(HOUSE))


def test_no_sentence_has_lost_its_second_half() -> None:
    """A string that is a statement of its own is a docstring, or the rest of a sentence that nobody will read."""
    lost = []
    for name, path in modules().items():
        owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = {node.body[0] for node in nodes_of(path) if isinstance(node, owners) and node.body}
        for node in nodes_of(path):
            is_text = isinstance(node, ast.Expr) and (
                isinstance(node.value, ast.JoinedStr)
                or (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str))
            )
            if is_text and node not in docstrings:
                lost.append(f"{name}:{node.lineno}")

    assert lost == []
