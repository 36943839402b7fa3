"""Laws as loops: one test runs over many values, and its failure names the value. And cases that take turns. A separate
case for each seed would cost more than most laws, and in a list of thousands of cases nobody finds the laws."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest


def for_each(name: str, values: Iterable[object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the decorated test once for each value of its argument `name`, in one case. Each run has a folder `tmp_path`
    and changes through `monkeypatch` of its own. All runs share other fixtures. So a test with state between runs needs
    `pytest.mark.parametrize`."""
    listed = tuple(values)

    def looped(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        others = [parameter for parameter in signature.parameters.values() if parameter.name != name]
        if len(others) == len(signature.parameters) or not listed:
            raise ValueError(f"{test.__name__} has no argument {name}, or there is no value for it")

        @functools.wraps(test)
        def run_each(**given: Any) -> None:  # Any: whatever the fixtures are
            for value in listed:
                with pytest.MonkeyPatch.context() as patch:
                    own: dict[str, Any] = {name: value}
                    if "monkeypatch" in given:
                        own["monkeypatch"] = patch
                    if "tmp_path" in given:
                        own["tmp_path"] = given["tmp_path"] / f"{name}-{value}"
                        Path(own["tmp_path"]).mkdir()
                    try:
                        test(**given | own)
                    except Exception as failure:
                        failure.add_note(f"with {name}={value!r}")
                        raise

        run_each.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run_each

    return looped


def some(cases: Iterable[tuple[object, ...] | object], every: int) -> list[Any]:
    """The cases for `pytest.mark.parametrize`, of which the first and then each `every`-th one runs by default. The
    rest are slow, and continuous integration runs them."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow if number % every else ())
        for number, case in enumerate(cases)
    ]


def in_turns(cases: Iterable[tuple[object, ...] | str | int], others: Sequence[object], every: int = 1) -> list[Any]:
    """Each case with each of the other values, for `pytest.mark.parametrize`.

    By default a case runs with one of them: the first case with the first value, the second case with the second, and
    so on. The rest are slow, and continuous integration runs them. With `every`, only each `every`-th of these turns is
    taken by default.

    Args:
        cases: one value of the first argument each, or a tuple with one value for each of the first arguments.
        others: the values of the last argument.
        every: 2 halves the cases of the default suite.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            other,
            marks=() if (place, 0) == (number // every % len(others), number % every) else pytest.mark.slow,
        )
        for number, case in enumerate(cases)
        for place, other in enumerate(others)
    ]
