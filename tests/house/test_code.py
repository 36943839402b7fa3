"""Size and shape of the code, and the ways by which bytes could become code."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.imports import HOUSE, modules, nodes_of, tree_of
from tests.house.sizes import CEILINGS, duplicate_names, rooms, summary

FILES = {name: path for name, path in modules().items() if not name.startswith("protos.wire.generated")}
LONGEST_FILE, LONGEST_FUNCTION = 600, 40
CALLS_OF_CODE = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES_OF_CODE = {
    ("torch", "load"), ("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load"),
    ("importlib", "import_module"), ("os", "system"), ("os", "popen"),
}  # fmt: skip
MODULES_OF_CODE = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
# The code that runs foreign code: the hospital's own network, from its own disk.
OWN_CODE = {"site_agent.trainer.models.user_module": ["exec", "compile"]}
SOURCES = [
    *FILES.values(),
    *(path for room in ("deploy", "tests", "benchmarks") for path in (HOUSE / room).rglob("*.py")),
]


def definitions(node: ast.AST, path: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its dotted path, those inside others included."""
    for child in ast.iter_child_nodes(node):
        inner = path
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{path}.{child.name}".lstrip(".")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner, child
        yield from definitions(child, inner)


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring and decorators."""
    docstring = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
    spent = docstring.end_lineno - docstring.lineno + 1 if docstring and docstring.end_lineno else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - spent


def _is_one_match(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    rest = [part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    return len(rest) <= 6 and sum(isinstance(part, ast.Match) for part in rest) == 1


def test_files_and_functions_stay_short() -> None:
    """A file above 600 lines has two subjects, and a function above 40 lines is divided."""
    files = [path for path in SOURCES if len(path.read_text().splitlines()) > LONGEST_FILE]
    functions = [
        f"{name}.{path}"
        for name, file in FILES.items()
        for path, node in definitions(tree_of(file))
        if lines_of(node) > LONGEST_FUNCTION and not _is_one_match(node)
    ]

    assert files == []
    assert functions == []
    assert duplicate_names() == {}


def test_no_room_grows() -> None:
    """Each room of the packages, the tests, the benchmarks and the pages stay below their ceilings."""
    sizes = {room: size for room, (size, _) in rooms().items()} | summary()

    assert {name: size for name, size in sizes.items() if name in CEILINGS and size > CEILINGS[name]} == {}
    assert set(CEILINGS) <= set(sizes)


def _dangers(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names if alias.name.split(".")[0] in MODULES_OF_CODE)
        case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES_OF_CODE:
            yield module
        case ast.Call(func=ast.Name(id=called)) if called in CALLS_OF_CODE:
            yield called
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=called)):
            yield from [f"{owner}.{called}"] if (owner, called) in ATTRIBUTES_OF_CODE else []
        case ast.keyword(arg="allow_pickle" | "shell", value=ast.Constant(value=True)):
            yield str(node.arg)


def test_nothing_that_arrives_is_executed() -> None:
    """The code has no pickle, no eval, no loader that runs its input, and no import by a name from outside."""
    found = {name: [danger for node in nodes_of(path) for danger in _dangers(node)] for name, path in FILES.items()}

    assert {name: words for name, words in found.items() if words} == OWN_CODE


def test_the_search_finds_what_executes() -> None:
    """Each way in which bytes become code is found where it is used."""
    ways = (
        "import pickle", "from joblib import load", "eval('1')", "torch.load(path)", "yaml.load(text, Loader)",
        "importlib.import_module(name)", "numpy.load(path, allow_pickle=True)", "subprocess.run(x, shell=True)",
    )  # fmt: skip

    assert [text for text in ways if not any(list(_dangers(node)) for node in ast.walk(ast.parse(text)))] == []
