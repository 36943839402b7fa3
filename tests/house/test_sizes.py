"""Size and shape: the properties on which a reader may rely before opening a file."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.house.imports import HOUSE, modules, nodes_of, tree_of
from tests.house.sizes import duplicate_names

FILES = {name: path for name, path in modules().items() if not name.startswith("protos.wire.generated")}
LONGEST_FILE, LONGEST_FUNCTION = 600, 40
LEFT_OVERS = {"utils", "util", "common", "base", "helpers", "helper", "misc", "tools", "shared"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# Ways by which bytes become code, or by which a file could name what is imported.
CALLS_OF_CODE = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES_OF_CODE = {
    ("torch", "load"),
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
    ("yaml", "full_load"),
    ("importlib", "import_module"),
    ("os", "system"),
    ("os", "popen"),
}
# The code that runs foreign code: the hospital's own network, from its own disk; and the loader of an export, which
# runs that same file if its SHA-256 is the one of the export.
OWN_CODE = {
    "site_agent.trainer.models.own_module": ["exec", "compile"],
    "site_agent.desk.export.loader": ["exec", "compile"],
}
MODULES_OF_CODE = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
PROGRAMS = [*FILES.values(), *(HOUSE / "deploy").rglob("*.py")]
SOURCES = [*PROGRAMS, *(path for room in ("tests", "benchmarks") for path in (HOUSE / room).rglob("*.py"))]


def tree(name: str) -> ast.Module:
    """A module's syntax."""
    return tree_of(FILES[name])


def shown(path: Path) -> str:
    """A file's path as a person writes it."""
    return str(path.relative_to(HOUSE))


def definitions(
    node: ast.AST, path: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """Every function and class with its dotted path, those inside others included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{path}.{child.name}".lstrip(".")
            yield inner, child
            yield from definitions(child, inner)
        else:
            yield from definitions(child, path)


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring and decorators."""
    docstring = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
    spent = docstring.end_lineno - docstring.lineno + 1 if docstring and docstring.end_lineno else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - spent


def test_no_file_has_two_subjects() -> None:
    """A file above 600 lines has two subjects and is split."""
    long = {shown(path): size for path in SOURCES if (size := len(path.read_text().splitlines())) > LONGEST_FILE}

    assert long == {}


def test_functions_stay_short() -> None:
    """No function has more than 40 lines without its docstring; only a plain `match` over messages may be longer."""
    long = {
        f"{name}.{path}": lines_of(node)
        for name in FILES
        for path, node in definitions(tree(name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines_of(node) > LONGEST_FUNCTION
        if not _is_one_match(node)
    }

    assert long == {}


def test_everything_public_says_what_it_is() -> None:
    """Each module, and each class and function that another file may use, has a docstring."""
    silent = [
        f"{name}.{path}"
        for name in FILES
        for path, node in definitions(tree(name))
        if not any(word.startswith("_") for word in path.split("."))
        and not ast.get_docstring(node)
        and not _is_inside_function(tree(name), node)
    ]

    assert silent == []
    assert [name for name in FILES if tree(name).body and not ast.get_docstring(tree(name))] == []


def test_no_file_is_named_for_what_is_left_over() -> None:
    """A name like utils or common shows that nobody knew where its content belongs."""
    assert [shown(path) for path in SOURCES if {path.stem, path.parent.name} & LEFT_OVERS] == []


def test_no_two_files_of_the_packages_have_one_name() -> None:
    """The name of a file is enough to find it."""
    assert duplicate_names() == {}


def comments_in(source: str) -> list[str]:
    """The comments and the strings of a text."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in tokens if token.type in (tokenize.COMMENT, tokenize.STRING)]


def test_nothing_is_left_unfinished() -> None:
    """The code has no note to do something later, and no unimplemented function."""
    for name, path in FILES.items():
        source = path.read_text()
        if UNFINISHED.search(source):  # perhaps in a name; only such a file is taken apart
            assert [text for text in comments_in(source) if UNFINISHED.search(text)] == [], name
        assert not re.search(r"\bNotImplemented(Error)?\b", _without_protocols(source)), name


def test_nothing_that_arrives_is_executed() -> None:
    """The code has no pickle, no eval, no loader that runs its input, and no import by a name from outside."""
    for name in FILES:
        dangers = [danger for node in nodes_of(FILES[name]) for danger in _dangers(node)]

        assert dangers == OWN_CODE.get(name, []), name


def test_the_search_finds_what_executes() -> None:
    """Each way in which bytes become code is found where it is used."""
    ways = (
        "import pickle",
        "from joblib import load",
        "eval('1')",
        "exec(text)",
        "torch.load(path)",
        "yaml.load(text, Loader)",
        "importlib.import_module(name)",
        "numpy.load(path, allow_pickle=True)",
        "subprocess.run(x, shell=True)",
    )
    missed = [text for text in ways if not [danger for node in ast.walk(ast.parse(text)) for danger in _dangers(node)]]

    assert missed == []


def test_exit_statuses_are_documented() -> None:
    """Each status with which a program ends is explained in the operator's pages."""
    pages = "\n".join(path.read_text() for path in (HOUSE / "docs").glob("operator*.md"))
    statuses = (0, 1, 2, 77, 78)

    assert [status for status in statuses if not re.search(rf"(?m)^\|\s*`?{status}`?\s*\|", pages)] == []


def _is_one_match(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is one `match` over a closed choice, as long as the choice is."""
    rest = [part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    matches = [part for part in rest if isinstance(part, ast.Match)]
    longest_case = (
        max((case.body[-1].end_lineno or 0) - case.body[0].lineno + 1 for part in matches for case in part.cases)
        if matches
        else LONGEST_FUNCTION
    )
    return len(matches) == 1 and len(rest) <= 6 and longest_case < 15


def _is_inside_function(module: ast.Module, wanted: ast.AST) -> bool:
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(node is wanted for function in functions for part in function.body for node in ast.walk(part))


def _without_protocols(source: str) -> str:
    return "\n".join(line for line in source.splitlines() if "return NotImplemented" not in line)


def _dangers(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names if alias.name.split(".")[0] in MODULES_OF_CODE)
        case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES_OF_CODE:
            yield module
        case ast.Call(func=ast.Name(id=called)) if called in CALLS_OF_CODE:
            yield called
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=called)) if (
            owner,
            called,
        ) in ATTRIBUTES_OF_CODE:
            yield f"{owner}.{called}"
        case ast.keyword(arg="allow_pickle" | "shell", value=ast.Constant(value=True)):
            yield str(node.arg)
        case _:
            return
