"""Recommends one of a run's models to this site. The recommendation uses only the site's own validation rows.

The rules:

* test rows are not read, so they can still test the adopted model;
* models are compared by the mean loss of their predictions: log loss, or the root mean square error. Masks are
  compared by their mean Dice;
* a model that is not clearly worse than the best one (paired 95% interval) is considered equally good. Of all such
  models the simplest is recommended, and a local one before the federated one;
* a recommendation changes nothing. A person adopts a model with `site-agent adopt`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from site_agent.desk.comparison.bootstrap_intervals import compare, is_lower_better
from site_agent.desk.comparison.evaluation import METRIC_NAMES
from site_agent.desk.comparison.gain import FEDERATED, SILOED
from site_agent.desk.comparison.scored_rows import ScoredRows
from site_agent.desk.results.simple_models import TITLES
from site_agent.trainer.checkpoints import Json

# The models with their names for people, from the simplest to the model that needs other hospitals.
MODEL_TITLES: Final = {**TITLES, SILOED: "the network trained alone", FEDERATED: "the federated model"}
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
    sign, most = (1.0, "lowest") if is_lower_better(metric) else (-1.0, "highest")
    best = min(found, key=lambda name: sign * found[name])
    differences = {name: compared.difference(best, name, metric) for name in models}
    equal = [name for name, one in differences.items() if name == best or one is None or not one.better]
    chosen, title, rows = equal[0], MODEL_TITLES[equal[0]], len(kept.validation)
    what = f"On this site's {rows} validation rows, this model's {METRIC_NAMES[metric]} of {found[chosen]:.3g}"
    if len(models) == 1:
        reason = "This model is the only model of the run that can be adopted."
    elif chosen != best:
        reason = (
            f"{what} does not differ clearly from the {most} ({MODEL_TITLES[best]}, {found[best]:.3g}). It is the"
            " simplest such model."
        )
    elif len(equal) > 1:
        reason = f"{what} is the {most}. Some other models are not clearly worse, but this model is the simplest."
    else:
        reason = f"{what} is clearly {'lower' if sign > 0 else 'higher'} than that of every other model."
    sentence = f"Recommended: {title}. {reason}"
    return {"model": chosen, "sentence": sentence, "metric": metric, "rows": rows, "losses": found}
