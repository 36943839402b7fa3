"""Recommends one of a run's models to this site. The recommendation uses only the site's own validation rows.

The rules:

* test rows are not read, so they can still test the adopted model;
* models are compared by the mean loss of their predictions: log loss, or the root mean square error. Masks are
  compared by their mean Dice;
* a model is considered as good as the best one if three things are true. It is not clearly worse (paired 95% interval).
  Its loss is at most one standard error above the best loss: the rule of Breiman et al. 1984, section 3.4.3, so a model
  with noisy losses is not "as good" because of its noise. Its loss is lower than that of every clearly worse model;
* of all such models the simplest is recommended, and a local one before the federated one;
* with fewer than FEWEST_TO_CHOOSE rows the sentence says that they are few;
* a recommendation changes nothing. A person adopts a model with `site-agent adopt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from site_agent.desk.comparison.bootstrap_intervals import Compared, compare, is_lower_better
from site_agent.desk.comparison.evaluation import METRIC_NAMES
from site_agent.desk.comparison.gain import FEDERATED, SILOED
from site_agent.desk.comparison.scored_rows import ScoredRows
from site_agent.desk.results.simple_models import TITLES
from site_agent.trainer.checkpoints import Json

# The models with their names for people, from the simplest to the model that needs other hospitals.
MODEL_TITLES: Final = {**TITLES, SILOED: "the model trained alone", FEDERATED: "the federated model"}
FEWEST_TO_CHOOSE: Final = 30
_FEW: Final = (
    f" These are too few rows for a reliable choice (fewer than {FEWEST_TO_CHOOSE}). With other rows the recommendation"
    " could be different."
)
_METRICS: Final = {"regression": "rmse", "segmentation": "dice"}


def recommend(kept: ScoredRows, seed: int) -> dict[str, Json] | None:
    """Return the recommended model of a run and the reason for the recommendation, ready for JSON.

    Args:
        kept: the run's scores. Only those of the validation rows are read.

    Returns:
        `model` by its name in the report, `sentence`, `metric`, `rows`, and `losses` of all models by name. None if
        no model has finite predictions for these rows.
    """
    metric = _METRICS.get(kept.validation.task, "log_loss")
    said = kept.validation_scores
    models = {name: said[name] for name in MODEL_TITLES if name in said and np.isfinite(said[name]).all()}
    if not models:
        return None
    compared = compare(kept.validation, models, seed)
    losses = {name: one[metric] for name, one in compared.metrics.items()}
    found = {name: loss for name, loss in losses.items() if loss is not None}
    choice, rows = _chosen(compared, found, metric), len(kept.validation)
    title = MODEL_TITLES[choice.chosen]
    if len(models) == 1:
        sentence = f"Recommended: {title}. This model is the only model of the run that can be adopted."
    else:
        few = _FEW if rows < FEWEST_TO_CHOOSE else ""
        sentence = f"Recommended: {title}. On this site's {rows} validation rows, {_reason(choice, found, metric)}{few}"
    return {"model": choice.chosen, "sentence": sentence, "metric": metric, "rows": rows, "losses": found}


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """The best model, the models about as good (also the best, the simplest first), and the clearly worse models."""

    best: str
    equal: tuple[str, ...]
    worse: frozenset[str]

    @property
    def chosen(self) -> str:
        return self.equal[0]


def _chosen(compared: Compared, found: Mapping[str, float], metric: str) -> _Choice:
    sign = 1.0 if is_lower_better(metric) else -1.0
    losses = {name: sign * value for name, value in found.items()}
    best = min(losses, key=losses.__getitem__)
    differences = {name: compared.difference(best, name, metric) for name in losses if name != best}
    worse = frozenset(name for name, one in differences.items() if one is not None and one.better)
    limit = losses[best] + float(np.nanstd(compared.resampled[best][metric]))  # the bootstrap's standard error
    ceiling = min((losses[name] for name in worse), default=np.inf)
    equal = tuple(name for name, loss in losses.items() if name == best or (loss <= limit and loss < ceiling))
    return _Choice(best=best, equal=equal, worse=worse)


def _reason(choice: _Choice, found: Mapping[str, float], metric: str) -> str:
    most, clearly = ("lowest", "lower") if is_lower_better(metric) else ("highest", "higher")
    best, what = choice.best, f"this model's {METRIC_NAMES[metric]} of {found[choice.chosen]:.3g}"
    if choice.chosen != best:
        return (
            f"{what} does not differ clearly from the {most} ({MODEL_TITLES[best]}, {found[best]:.3g}). The difference "
            "is at most one standard error. It is the simplest such model."
        )
    if len(choice.equal) > 1:
        return f"{what} is the {most}. Some more complex models are about as good."
    if len(choice.worse) == len(found) - 1:
        return f"{what} is clearly {clearly} than that of every other model."
    return (
        f"{what} is the {most}. Every other model is clearly worse, worse by more than one standard error, or not "
        "better than a clearly worse model."
    )
