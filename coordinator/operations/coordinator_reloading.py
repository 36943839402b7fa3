"""SIGHUP: coordinator.yaml is read again, and what was wrong in it changes nothing.

A running coordinator takes over plans that were added. Addresses, authority and state are bound to what was
built from them at the start, so the operator is told which keys wait for a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from coordinator.configuration import CoordinatorConfiguration, read_configuration, read_plans
from protos.errors import OperatorError
from protos.plan.plan import Plan

TAKEN_OVER: Final = ("plans",)


def added(known: frozenset[str], plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """The plans whose runs are not known yet, in their order; one that was taken out of the file goes on."""
    return tuple(plan for plan in plans if plan.run_name not in known)


class Reloading:
    """The configuration that holds; call this when it is to be read again."""

    def __init__(
        self,
        path: Path,
        configuration: CoordinatorConfiguration,
        plans: tuple[Plan, ...],
        add: Callable[[tuple[Plan, ...]], None],
    ) -> None:
        """`path` is the file that `configuration` was read from; `add` queues plans behind those that wait."""
        self._path, self._configuration, self._add = path, configuration, add
        self._known = frozenset(plan.run_name for plan in plans)

    def __call__(self) -> None:
        """Read the file and all its plans; where anything is wrong, what held before holds on."""
        log = structlog.get_logger()
        try:
            read = read_configuration(self._path)
            plans = added(self._known, read_plans(read))
        except OperatorError as wrong:
            log.error("configuration_kept", what=wrong.what, identifier=wrong.code)
            return
        held = self._configuration
        names = (name for name in CoordinatorConfiguration.model_fields if name not in TAKEN_OVER)
        waiting = [name for name in names if getattr(held, name) != getattr(read, name)]
        self._known |= {plan.run_name for plan in plans}
        self._add(plans)
        log.info("configuration_taken_over", plans=[plan.run_name for plan in plans], waits_for_restart=waiting)
