"""One hostile site of five, which sends any values of the ring. The others refuse the resulting parameters.

Studies, sums, answers and rollbacks are the programs' own. The attacker wants the honest sites to end with a model that
is worse than a network that has learned nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

import coordinator.rounds.rollbacks
from benchmarks.experiments.hostile_site import Attack as Move
from tests.hostile.attack import Attack, in_copy
from tests.hostile.test_refused_parameters import refuses_for_a_while, succeeds


def owned_model(weakened: bool, move: Move) -> bool:
    """Make the values of one site the model of all sites."""
    return succeeds(move, weakened=weakened)


def ended_training(weakened: bool) -> bool:
    """Have four rounds of one site's lies end the training of all."""
    with in_copy(weakened, without_patience):
        return refuses_for_a_while().training_rounds is not None


@contextmanager
def without_patience() -> Iterator[None]:
    """A second rollback ends the training, whatever came between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator.rounds.rollbacks, "has_lost_patience", lambda _, rollbacks: len(rollbacks) > 1)
        yield


ATTACKS = (
    Attack(
        name="hostile-site-ends-the-training",
        tries="one site of five refuses in the name of all for four rounds, so that the training ends for the others",
        without="the plan's patience",
        run=ended_training,
    ),
    *(
        Attack(
            name=f"hostile-site-{name}",
            tries=f"one site of five {tries}, so that its values become the model of all",
            without=missing,
            run=partial(owned_model, move=move),
        )
        for name, move, tries, missing in (
            ("replaces-the-model", Move.REPLACE, "sends the model of its choice", "the count of refusals"),
            ("uses-the-ring", Move.RING, "sends values far beyond the clipping range", "the count of refusals"),
            (
                "hides-refusals",
                Move.HIDE,
                "replaces the model and hides the others' refusals in the masked sum",
                "secret powers in the place of a plain count",
            ),
        )
    ),
)
