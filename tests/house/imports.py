"""The imports of every module of the house, read from its text: nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

HOUSE: Final = Path(__file__).parents[2]
ROOMS: Final = ("protos", "host", "pki", "coordinator", "site_agent", "global_layers")


@dataclass(frozen=True)
class Imported:
    """One import. `is_lazy`: it is inside a function and happens only when that is called."""

    importer: str
    imported: str
    line: int
    is_lazy: bool
    function: str = ""

    @property
    def package(self) -> str:
        """The first word of what is imported."""
        return self.imported.split(".")[0]

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


@cache
def modules() -> dict[str, Path]:
    """Name -> file of every module of the four packages."""
    files = sorted(path for room in ROOMS for path in (HOUSE / room).rglob("*.py"))
    return {_module_name(path): path for path in files}


@cache
def tree_of(path: Path) -> ast.Module:
    """A file's syntax, read once for all tests. Nobody may change it."""
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Everything in a file's syntax, in the order of `ast.walk`."""
    return tuple(ast.walk(tree_of(path)))


@cache
def all_imports() -> tuple[Imported, ...]:
    """Every import of the house."""
    return tuple(found for name, path in modules().items() for found in _imports_in(name, tree_of(path)))


@cache
def _imports_by_importer() -> dict[str, list[Imported]]:
    found: dict[str, list[Imported]] = {}
    for each in all_imports():
        found.setdefault(each.importer, []).append(each)
    return found


def _imports_in(importer: str, tree: ast.Module) -> Iterator[Imported]:
    for node, function in _walk(tree, ""):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(level=level) if level:
                raise AssertionError(f"{importer}:{node.lineno} imports relatively")
            case ast.ImportFrom(module=str(module), names=names):
                found = [inner if (inner := f"{module}.{one.name}") in modules() else module for one in names]
            case _:
                continue
        for name in dict.fromkeys(found):
            yield Imported(importer, name, node.lineno, bool(function), function)


@cache
def reachable(start: str, *, lazily: bool = False) -> frozenset[str]:
    """Every module of the house that is imported with `start`, parents of packages included. `lazily` follows imports
    inside functions as well, except those of a command line, where each function is a process of its own."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in modules():
            continue
        seen.add(name)
        waiting += [found.imported for found in _imports_by_importer().get(name, []) if _happens(found, lazily)]
        waiting += [name.rpartition(".")[0]] if "." in name else []
    return frozenset(seen)


def _happens(found: Imported, lazily: bool) -> bool:
    is_command_line = found.importer.endswith(("_cli", "_command")) or ".commands." in found.importer
    return not found.is_lazy or (lazily and not is_command_line)


def _module_name(path: Path) -> str:
    parts = path.relative_to(HOUSE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _walk(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str]]:
    for child in ast.iter_child_nodes(node):
        inner = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner = function or getattr(child, "name", "lambda")
        yield child, inner
        yield from _walk(child, inner)
