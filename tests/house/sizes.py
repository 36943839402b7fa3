"""Print how large the house is: `python -m tests.house.sizes`.

It counts lines of Python files as they are, with comments and blank lines. Code that protoc generates is not counted.
`--suite` also runs the default tests and prints their minutes. The last line has `key=value` pairs, so that a program
can compare two versions. A room that is above its ceiling is marked, and a test fails. Ceilings only fall.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Final

from protos.plan.network_plan import NetworkPlan
from protos.plan.prior_plan import PriorPlan
from protos.plan.statistics_plan import StatisticsPlan
from tests.house.imports import HOUSE, all_imports, modules, nodes_of

ROOMS: Final = (
    "protos.plan", "protos.statistics", "protos.wire", "protos.masking", "protos.privacy", "protos.numbers", "protos",
    "host", "pki",
    "coordinator.rounds", "coordinator.storage", "coordinator.network", "coordinator.commands",
    "coordinator",
    "site_agent.agent", "site_agent.gate", "site_agent.service", "site_agent.trainer", "site_agent.desk",
    "site_agent.commands", "site_agent",
    "global_layers",
)  # fmt: skip
# The files that an auditor reads to learn what leaves a hospital, in this order. docs/threat-model.md describes
# each part.
AUDIT_ORDER: Final = {
    "the one door": ("site_agent.gate.door",),
    "the decision": (
        "site_agent.gate.permission", "site_agent.gate.policy", "site_agent.gate.consent", "site_agent.approvals",
        "site_agent.gate.privacy_ledger",
        "site_agent.gate.itinerary", "site_agent.approving",
    ),
    "a round": (
        "site_agent.gate.run_admission", "site_agent.gate.site_rounds", "site_agent.gate.loop",
        "site_agent.gate.mishaps", "site_agent.gate.agent_link",
    ),
    "what a plan exchanges": (
        "protos.plan.manifest", "protos.plan.exchange", "protos.plan.patient_privacy", "protos.plan.private_training",
        "protos.plan.private_prior", "protos.plan.statistics_plan", "protos.privacy",
    ),
    "the masks": ("site_agent.gate.site_masking", "site_agent.gate.masked_steps", "protos.masking"),
    "the audit log": ("host.record_store", "host.audit_log"),
    "how it starts": (
        "site_agent.service.joining", "site_agent.service.enrolling", "site_agent.gate.separation",
    ),
}  # fmt: skip
AUDITED: Final = tuple(name for names in AUDIT_ORDER.values() for name in names)
# The other files beside the door; test_exits.py checks them.
SKIPPED: Final = {
    "waiting": ("site_agent.gate.waiting",),
    "messages without numbers": (
        "site_agent.gate.site_upkeep", "site_agent.gate.site_certificates",
    ),
    "status and metrics": (
        "site_agent.service.site_doctor", "site_agent.service.neighbours", "site_agent.service.status_socket",
    ),
}  # fmt: skip
# The trainer's process runs this file of the desk during a run. All else comes before the first round, or after.
BESIDE_A_ROUND: Final = (
    *(name for name in AUDITED if name != "site_agent.approving"),
    *(name for names in SKIPPED.values() for name in names),
    "site_agent.trainer", "site_agent.trainer_process", "site_agent.desk.after_rounds",
)  # fmt: skip
SHORTEST_DUPLICATE: Final = 6  # lines; shorter functions are alike by chance
# Lines of a room, words of the pages, keys of a plan. A change that needs more space finds it in its own room, or
# lowers another ceiling.
CEILINGS: Final = {
    "package_lines": 47_430, "audited_lines": 5_875, "beside_a_round_lines": 18_844, "test_lines": 54_339,
    "benchmark_lines": 6_651, "doc_words": 28_814, "plan_keys": 20,
    "protos.plan": 5_394, "protos.statistics": 3_119, "protos.wire": 996, "protos.masking": 541,
    "protos.privacy": 236, "protos.numbers": 528, "protos": 156, "host": 2_371, "pki": 1_953,
    "coordinator.rounds": 2_106, "coordinator.storage": 693, "coordinator.network": 1_109,
    "coordinator.commands": 759, "coordinator": 10, "site_agent.agent": 606, "site_agent.gate": 3_240,
    "site_agent.service": 633, "site_agent.trainer": 12_092, "site_agent.desk": 6_977, "site_agent.commands": 1_054,
    "site_agent": 2_391, "global_layers": 466,
}  # fmt: skip

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def counted() -> dict[str, int]:
    """Return the lines of each module that a person wrote."""
    return {
        name: len(path.read_text().splitlines())
        for name, path in modules().items()
        if not name.startswith("protos.wire.generated")
    }


def is_in(module: str, prefix: str) -> bool:
    """Return whether a module is this one or inside it."""
    return module == prefix or module.startswith(f"{prefix}.")


def inside(prefixes: Iterable[str]) -> list[str]:
    """Return the modules in any of these packages or modules."""
    wanted = tuple(prefixes)
    return [name for name in counted() if any(is_in(name, prefix) for prefix in wanted)]


def lines(prefixes: Iterable[str]) -> int:
    """Return the lines of the modules in any of these packages or modules."""
    return sum(counted()[name] for name in inside(prefixes))


def rooms() -> dict[str, tuple[int, int]]:
    """Return lines and files of each room; a module belongs to the longest prefix that fits."""
    found: dict[str, list[int]] = {room: [0, 0] for room in ROOMS}
    for name, size in counted().items():
        room = max((room for room in ROOMS if is_in(name, room)), key=len)
        found[room][0] += size
        found[room][1] += 1
    return {room: (size, files) for room, (size, files) in found.items() if files}


def _longest_chain() -> list[str]:
    below: dict[str, set[str]] = defaultdict(set)
    for found in all_imports():
        if not found.is_lazy and found.imported in counted():
            below[found.importer].add(found.imported)

    @cache
    def chain(name: str) -> tuple[str, ...]:
        return (name, *max((chain(inner) for inner in sorted(below[name])), key=len, default=()))

    return list(max((chain(name) for name in counted()), key=len))


def duplicate_names() -> dict[str, list[str]]:
    """Return the file names that more than one module has; `__init__` and `__main__` are not names."""
    paths: dict[str, list[str]] = defaultdict(list)
    for name in counted():
        path = modules()[name]
        if path.stem not in {"__init__", "__main__"}:
            paths[path.name].append(str(path.relative_to(HOUSE)))
    return {name: found for name, found in paths.items() if len(found) > 1}


def _duplicate_functions() -> list[list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for name in counted():
        for node in nodes_of(modules()[name]):
            if isinstance(node, Function) and (node.end_lineno or 0) - node.lineno >= SHORTEST_DUPLICATE:
                groups[_code(node)].append(f"{name}.{node.name}")
    return [found for found in groups.values() if len(found) > 1]


def _lines_below(folder: str) -> int:
    return sum(len(path.read_text().splitlines()) for path in (HOUSE / folder).rglob("*.py"))


def doc_words() -> int:
    """Return the words of README and of all pages in docs."""
    pages = [HOUSE / "README.md", *(HOUSE / "docs").rglob("*.md")]
    return sum(len(path.read_text().split()) for path in pages)


def suite_minutes() -> float:
    """Run the default tests on two cores, and return their minutes."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--numprocesses", "2", "--dist", "worksteal"]
    began = time.monotonic()
    subprocess.run(command, cwd=HOUSE, stdout=sys.stderr, check=False)
    return (time.monotonic() - began) / 60


def summary() -> dict[str, int]:
    """Return the figures of the last line."""
    return {
        "package_lines": sum(counted().values()),
        "audited_lines": lines(AUDITED),
        "beside_a_round_lines": lines(BESIDE_A_ROUND),
        "test_lines": _lines_below("tests"),
        "benchmark_lines": _lines_below("benchmarks"),
        "doc_words": doc_words(),
        "plan_keys": max(len(kind.model_fields) for kind in (NetworkPlan, StatisticsPlan, PriorPlan)),
        "files": len(counted()),
    }


def table(minutes: str) -> str:
    """Return the whole report as text."""
    chain, copies = _longest_chain(), [" = ".join(group) for group in _duplicate_functions()]
    rows = [f"{'room':<24}{'lines':>8}{'files':>7}{'ceiling':>9}"]
    for room, (size, files) in rooms().items():
        ceiling = CEILINGS.get(room, 0)
        rows.append(f"{room:<24}{size:>8,}{files:>7}{ceiling:>9,}{'  ABOVE' if ceiling and size > ceiling else ''}")
    rows += [
        "",
        f"An auditor reads {lines(AUDITED):,} lines, in this order:",
        *(f"  {part:<26}{lines(names):>6,}  {', '.join(names)}" for part, names in AUDIT_ORDER.items()),
        f"An auditor may skip {lines(name for names in SKIPPED.values() for name in names):,} lines:",
        *(f"  {part:<26}{lines(names):>6,}  {', '.join(names)}" for part, names in SKIPPED.items()),
        f"Longest import chain: {len(chain)} modules ({' > '.join(chain)}).",
        f"Functions with the same code: {'; '.join(copies) or 'none'}.",
        "",
        " ".join(f"{name}={value}" for name, value in summary().items()) + f" suite_minutes={minutes}",
    ]
    return "\n".join(rows)


def _code(node: Function) -> str:
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return "\n".join([ast.dump(node.args), *(ast.dump(part) for part in body)])


if __name__ == "__main__":
    print(table(f"{suite_minutes():.1f}" if "--suite" in sys.argv[1:] else "unmeasured"))
