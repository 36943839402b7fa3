"""Change single decisions and check whether a test fails: `python -m tests.house.mutations --count 30 --seed 1`.

Each mutation changes one operator, condition or number in the gate, the ledger of masks, the round machine or the fixed
point. The default tests of that subject run against a copy of the tree with this one change. If no test detects a
mutation, either a test is missing or the line is not needed. Otherwise the line names the first test that failed. It
takes some 30 seconds for a mutation that is caught, and some minutes for one that is not. The last line has `key=value`
pairs.
"""

from __future__ import annotations

import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).parents[2]
# The files that are changed, and the tests that should detect it. The nearest tests come first, because the first
# failure ends the run.
SUBJECTS: Final = {
    "gate": (
        (
            "site_agent/gate/consent.py", "site_agent/gate/door.py", "site_agent/gate/itinerary.py",
            "site_agent/gate/permission.py",
            "site_agent/gate/policy.py", "site_agent/gate/privacy_ledger.py", "site_agent/service/released_volume.py",
            "site_agent/gate/run_admission.py", "site_agent/gate/site_masking.py", "site_agent/gate/site_rounds.py",
            "site_agent/gate/spent.py",
        ),
        ("tests/site_agent/gate", "tests/hostile", "tests/laws", "tests/transcripts"),
    ),
    "ledger": (
        (
            "protos/masking/answered_sets.py", "protos/masking/ledger.py", "protos/masking/ledger_lines.py",
            "protos/masking/key_session.py", "protos/masking/mask_context.py", "protos/masking/mask_stream.py",
        ),
        ("tests/protos/masking", "tests/hostile", "tests/laws"),
    ),
    "round machine": (
        (
            "coordinator/rounds/course.py", "coordinator/rounds/engine.py", "coordinator/rounds/phases.py",
            "coordinator/rounds/rollbacks.py", "coordinator/rounds/round.py", "coordinator/rounds/run.py",
            "coordinator/rounds/taken_out.py",
        ),
        ("tests/coordinator", "tests/transcripts", "tests/laws", "tests/hostile"),
    ),
    "fixed point": (
        ("protos/numbers/fixed_point.py", "protos/numbers/round_sums.py", "protos/numbers/refusals.py"),
        ("tests/protos", "tests/laws"),
    ),
}  # fmt: skip
LIMIT_SECONDS: Final = 1200
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """One change: its subject, its file, which of the file's places, the line and what it was and became."""

    subject: str
    path: str
    place: int
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each node that can be changed, with the smallest expression around it; words of errors are left alone."""

    def walk(node: ast.AST, around: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.AnnAssign | ast.arguments | ast.Assert):
            return
        if isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp | ast.If | ast.IfExp):
            around = node.test if isinstance(node, ast.If) else node
        is_compared = isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED
        is_computed = isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED
        is_number = isinstance(node, ast.Constant) and type(node.value) is int
        if is_compared or is_computed or is_number or isinstance(node, ast.BoolOp | ast.If):
            yield node, around if not is_number or isinstance(around, ast.expr) else node
        for child in ast.iter_child_nodes(node):
            yield from walk(child, around)

    yield from walk(tree, tree)


def change(node: ast.AST) -> None:
    """Change one node where it stands."""
    match node:
        case ast.Compare(ops=[first, *rest]):
            node.ops = [_COMPARED[type(first)](), *rest]
        case ast.BinOp():
            node.op = _COMPUTED[type(node.op)]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.Constant(value=int(number)):
            node.value = number + 1
        case ast.If():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case _:
            raise TypeError(node)


def drawn(count: int, seed: int) -> list[Mutation]:
    """Draw mutations: each subject has the same chance, and within it each place."""
    generator, found = random.Random(seed), list[Mutation]()  # a draw of places, no secret
    while len(found) < count:
        subject = generator.choice(list(SUBJECTS))
        every = [
            (path, place)
            for path in SUBJECTS[subject][0]
            for place in range(len(list(places(ast.parse((ROOT / path).read_text())))))
        ]
        path, place = generator.choice(every)
        mutation = _made(subject, path, place)[0]
        if mutation not in found:
            found.append(mutation)
    return found


def _made(subject: str, path: str, place: int) -> tuple[Mutation, str]:
    tree = ast.parse((ROOT / path).read_text())
    node, around = list(places(tree))[place]
    line = int(getattr(node, "lineno", 0))
    before = ast.unparse(around)
    is_condition = isinstance(node, ast.If)
    change(node)
    after = f"not ({before})" if is_condition else ast.unparse(around)
    return Mutation(subject, path, place, line, before, after), ast.unparse(ast.fix_missing_locations(tree))


def caught_by(mutation: Mutation, tree: Path, processes: int) -> str:
    """Return the first default test that fails against the tree with this one change, or nothing.

    Tests that take too long have failed. Only the name shows whether a failure has to do with the change.
    """
    path = tree / mutation.path
    original = path.read_text()
    path.write_text(_made(mutation.subject, mutation.path, mutation.place)[1])
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-mnot slow", f"-n{processes}"]
    try:
        for tests in SUBJECTS[mutation.subject][1]:
            done = subprocess.run(
                [*words, tests], cwd=tree, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
            )  # fmt: skip
            if done.returncode not in (0, 5):
                return next(iter(_FAILED.findall(done.stdout)), f"{tests} ended with {done.returncode}")
    except subprocess.TimeoutExpired:
        return f"{tests} took more than {LIMIT_SECONDS} s"
    finally:
        path.write_text(original)
    return ""


@click.command(help=__doc__)
@click.option("--count", default=30, show_default=True, help="How many mutations.")
@click.option("--seed", default=1, show_default=True, help="What the places are drawn with.")
@click.option("--processes", default=2, show_default=True, help="How many processes run the tests.")
@click.option("--list", "only_list", is_flag=True, help="Print the mutations and run nothing.")
def main(count: int, seed: int, processes: int, only_list: bool) -> None:
    """Print a line for each mutation."""
    mutations, caught = drawn(count, seed), 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        if not only_list:
            leave = shutil.ignore_patterns(".git", ".venv*", "*.egg-info", "__pycache__", "quickstart-run")
            shutil.copytree(ROOT, tree, ignore=leave, symlinks=True)
        for mutation in mutations:
            if only_list:
                print(mutation)
                continue
            test = caught_by(mutation, tree, processes)
            caught += bool(test)
            print(f"caught   {mutation}  by {test}" if test else f"SURVIVED {mutation}", flush=True)
    if not only_list:
        print(f"mutations={count} caught={caught} seed={seed}")


if __name__ == "__main__":
    main()
