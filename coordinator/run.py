"""One run of one plan: its parameters, its running sum and its place in the state machine.

It holds sums and never one site's values. A record that was written is whole, and so are the
parameters that it speaks of.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from coordinator.aggregation import RunningSum
from coordinator.phases import Over, State, Terms
from coordinator.rules import RuleState, apply_rule, begin_rule, total_weight
from protos.fixed_point import FixedPoint
from protos.manifest import Manifest, manifest_of
from protos.messages import EpochAcknowledgement, KeyAdvert
from protos.parameters import parameters_digest
from protos.plan import Plan
from protos.tensors import Layout


@dataclass
class Run:
    """What changes while a run goes on; `state` is the machine's, everything else follows it."""

    name: str
    plan: Plan
    manifest: Manifest
    terms: Terms
    state: State
    parameters: npt.NDArray[np.float32] = field(repr=False)
    parameters_digest: bytes
    running_sum: RunningSum = field(repr=False)
    rule_state: RuleState = field(repr=False)
    rounds_made: int = 0
    seconds: list[float] = field(default_factory=list, repr=False)
    round_began: float = 0.0
    adverts: dict[str, KeyAdvert] = field(default_factory=dict, repr=False)
    acknowledgements: dict[str, EpochAcknowledgement] = field(default_factory=dict, repr=False)

    @property
    def is_consistent(self) -> bool:
        """Whether every check adds up and every scalar lies within what so many honest sites can give."""
        sums = self.running_sum
        bounds = zip(sums.scalars, self.manifest.scalars, strict=True)
        return sums.is_consistent and all(0 < total <= sums.sites * scalar.bound for total, scalar in bounds)

    def close_round(self, contributors: int) -> None:
        """Apply the server rule to the complete, consistent sum."""
        sums = self.running_sum
        fixed_point = FixedPoint(self.plan.encoding.clipping_range, len(self.plan.sites))
        weight = total_weight(self.plan.weighting, contributors, sums.scalars)
        rule = self.plan.ingredients.server_rule
        apply_rule(rule, self.parameters, sums.changes, fixed_point, weight, self.rule_state)
        self.parameters_digest = parameters_digest(self.parameters)
        self.rounds_made += 1

    def facts(self) -> dict[str, str | int | float | None]:
        """What anyone may know of the run, ready for JSON."""
        return {
            "run": self.name,
            "study": self.plan.study,
            "version": self.plan.version,
            "plan_digest": self.plan.digest.hex(),
            "manifest_digest": self.manifest.digest.hex(),
            "method": self.plan.method.name,
            "seed": self.plan.seed,
            "masked": self.plan.secure_aggregation == "required",
            "phase": type(self.state).__name__.lower(),
            "rounds": self.plan.schedule.rounds,
            "rounds_made": self.rounds_made,
            "parameters": self.manifest.parameters,
            "median_round_seconds": statistics.median(self.seconds) if self.seconds else None,
        }


def new_run(plan: Plan, terms: Terms, state: State) -> Run:
    """A run before its first round: initial parameters from the plan's seed, nothing summed."""
    manifest = manifest_of(plan)
    parameters = manifest.initial_parameters(plan.seed)
    return Run(
        name=plan.run_name,
        plan=plan,
        manifest=manifest,
        terms=terms,
        state=state,
        parameters=parameters,
        parameters_digest=parameters_digest(parameters),
        rule_state=begin_rule(plan.ingredients.server_rule, manifest.parameters),
        running_sum=RunningSum(Layout(manifest.parameters, len(manifest.scalars))),
    )


def has_complete_record(directory: Path) -> bool:
    """Whether a run in this directory was made to its end; its record is never written again."""
    try:
        return json.loads((directory / "record.json").read_bytes())["is_complete"] is True
    except FileNotFoundError:
        return False


def write_record(directory: Path, run: Run, over: Over) -> None:
    """Keep what a run was and what came out: the plan, the facts and the final parameters."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    tensors: Mapping[str, npt.NDArray[np.float32]] = run.manifest.views(run.parameters)
    _replace(directory / "plan.json", run.plan.canonical)
    partial = directory / "parameters.safetensors.partial"
    save_file(dict(tensors), partial, metadata={"run": run.name, "plan_digest": run.plan.digest.hex()})
    # Synced before the record, which says that these parameters are there.
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(directory / "parameters.safetensors")
    facts = run.facts() | {
        "is_complete": over.is_complete,
        "reason": over.reason,
        "missing": sorted(over.missing),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        # Not among the facts, which are asked for twice a second: 0.2 s for 25 million numbers.
        "shared_parameters_sha256": sha256_of(run.parameters),
    }
    _replace(directory / "record.json", json.dumps(facts, indent=2, sort_keys=True).encode())


def sha256_of(parameters: npt.NDArray[np.float32]) -> str:
    """SHA-256 of the vector's little-endian bytes in hexadecimal, as reports state it.

    Args:
        parameters: float32 of shape (parameters,).
    """
    return hashlib.sha256(parameters.view(np.uint8).data).hexdigest()


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
