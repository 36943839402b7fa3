"""Copies of the ledger that compare sets less strictly, for as long as a `with` lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from protos.masking.ledger import Ask, Comparison, Ledger

Honest = Callable[[Ledger, Ask, Comparison, int, Any], None]


@contextmanager
def _in_place(weaker: Callable[[Honest, Ledger, Ask, Comparison, int, Any], None]) -> Iterator[None]:
    honest: Any = Ledger._require_budget

    def check(self: Ledger, ask: Ask, compared: Comparison, budget: int, reason: Any) -> None:
        weaker(honest, self, ask, compared, budget, reason)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "_require_budget", check)
        yield


def _newest_set(ledger: Ledger) -> frozenset[str]:
    last = ledger.last
    return frozenset() if last is None else frozenset(ledger.steps[last.step].masked[-1].contributors)


@contextmanager
def with_free_growth() -> Iterator[None]:
    """A set that holds all sites of the newest one costs nothing, as in the first version."""

    def weaker(honest: Honest, ledger: Ledger, ask: Ask, compared: Comparison, budget: int, reason: Any) -> None:
        if not _newest_set(ledger) <= set(ask.contributors):
            honest(ledger, ask, compared, budget, reason)

    with _in_place(weaker):
        yield


@contextmanager
def with_the_newest_set_alone() -> Iterator[None]:
    """A sum is compared with the set of the newest step, and with nothing before."""

    def weaker(honest: Honest, ledger: Ledger, ask: Ask, compared: Comparison, budget: int, reason: Any) -> None:
        last = ledger.last
        newest = {} if last is None else {last.step: ledger.steps[last.step]}
        honest(replace(ledger, steps=newest, forgotten={}), ask, replace(compared, others={}), budget, reason)

    with _in_place(weaker):
        yield


@contextmanager
def without_other_runs() -> Iterator[None]:
    """Answers under other plans do not count."""

    def weaker(honest: Honest, ledger: Ledger, ask: Ask, compared: Comparison, budget: int, reason: Any) -> None:
        honest(ledger, ask, replace(compared, others={}), budget, reason)

    with _in_place(weaker):
        yield


@contextmanager
def with_short_memory() -> Iterator[None]:
    """A step that is over is forgotten with the set that it was answered for."""
    honest = Ledger.forget_before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "forget_before", lambda self, oldest: replace(honest(self, oldest), forgotten={}))
        yield


@contextmanager
def with_free_returns() -> Iterator[None]:
    """A set that was answered before costs nothing when it comes again."""

    def weaker(honest: Honest, ledger: Ledger, ask: Ask, compared: Comparison, budget: int, reason: Any) -> None:
        known = {entry.contributors for step in ledger.steps.values() for entry in step.masked}
        if ask.contributors not in known:
            honest(ledger, ask, compared, budget, reason)

    with _in_place(weaker):
        yield
