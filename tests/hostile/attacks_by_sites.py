"""One hostile site of five, which sends any values of the ring: the others refuse what comes of it.

Studies, sums, answers and rollbacks are the programs' own. The attacker wants the honest sites to end with a model that
is worse than a network that has learned nothing.
"""

from __future__ import annotations

from functools import partial

from benchmarks.experiments.hostile_site import Attack as Move
from tests.hostile.attack import Attack
from tests.hostile.test_refused_parameters import succeeds


def owned_model(weakened: bool, move: Move) -> bool:
    """Have the values of one site become the model of all."""
    return succeeds(move, weakened=weakened)


ATTACKS = tuple(
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
)
