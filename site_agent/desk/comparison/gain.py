"""Decides whether this site gained from joining the federation, and explains the result to a clinician.

It compares the federated model with the best local model on the same test rows. The best local model is the simple
model that this site would have chosen on its training rows, or the network trained alone if there are no simple
models. The rules:

* "gained" is reported only if two paired 95% intervals exclude zero: the difference to the best local model, and the
  difference to the placebo (a federation of copies of this site, or the same recipe without the others);
* without a placebo nobody can distinguish the effect of averaging from that of other hospitals, so no gain is
  reported;
* a loss against the best local model is a loss, whatever the result of the placebo;
* the report also states if there are too few test rows, or if a simple model is clearly better;
* nothing of this is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from site_agent.desk.comparison.bootstrap_intervals import Compared, Difference, Interval
from site_agent.desk.comparison.evaluation import METRIC_NAMES, HeldOutRows, headline_metric
from site_agent.desk.results.simple_models import TITLES
from site_agent.trainer.disk import Json

Verdict: TypeAlias = Literal["gained", "better, cause not shown", "lost", "no clear difference", "not comparable"]
FEDERATED: Final = "federated"
SILOED: Final = "siloed"
PLACEBO: Final = "placebo"
FEWEST_OF_A_CLASS: Final = 20
FEWEST_NUMBERS: Final = 40
_OPENINGS: Final[dict[Verdict, str]] = {
    "gained": "This site gained from joining",
    "better, cause not shown": "The federated model is better than the best local model, but joining "
    "may not be the reason",
    "lost": "Joining made the predictions at this site worse",
    "no clear difference": "The two models do not differ clearly",
    "not comparable": "The federated model was not compared with a local model",
}
_BROUGHT: Final = {True: "made the model better", False: "made the model worse", None: "made no clear difference"}
_PLACEBOS: Final = {
    PLACEBO: "a federation of copies of this site, without patients of other hospitals",
    SILOED: "the model trained alone (siloed): the same recipe without the other hospitals",
}


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """Names the local model and the placebo (copies of this site) with which the federated model is compared.

    `best_local` is a simple model; None means SILOED if there is one. The placebo is SILOED if that is the same recipe
    without the others. `why_none` is why there is no local model, as part of a sentence.
    """

    best_local: str | None = None
    placebo: Literal["placebo", "siloed"] = PLACEBO
    why_none: str = "this site was not trained alone"


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The comparison of the federated model with the best local model, in the task's headline metric.

    Attributes:
        metric: auroc, or rmse, where less is better.
        federated, siloed: the metric of these models; None if undefined, or if there is no such model.
        best_local: the name of the best local model; None if there is none.
        difference: federated minus the best local model with its paired interval.
        placebo: federated minus the placebo, if there was one.
        verdict: one of five.
        sentence: the verdict with its numbers, for the hospital.
        warnings: reasons not to rely on the result, each a sentence.
    """

    metric: str
    federated: float | None
    siloed: float | None
    best_local: str | None
    difference: Difference | None
    placebo: Difference | None
    verdict: Verdict
    sentence: str
    warnings: tuple[str, ...]

    @property
    def interval(self) -> Interval | None:
        return self.difference.interval if self.difference else None

    def to_json(self) -> dict[str, Json]:
        return {
            "metric": self.metric,
            "federated": self.federated,
            "siloed": self.siloed,
            "best_local": self.best_local,
            "best_local_value": self.difference.second if self.difference else None,
            "difference": self.difference.value if self.difference else None,
            "interval": self.interval,
            "placebo": self.placebo.to_json() if self.placebo else None,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "warnings": list(self.warnings),
        }


def gain_of(rows: HeldOutRows, compared: Compared, baselines: Baselines) -> Gain:
    """Return how much better the federated model is than the best local model, with a verdict and warnings.

    Without a best local model in the baselines, this is the network trained alone, if there is one.
    """
    metric = headline_metric(rows.task)
    values = {name: metrics[metric] for name, metrics in compared.metrics.items()}
    best = baselines.best_local or (SILOED if SILOED in values else None)
    difference = None if best is None else compared.difference(FEDERATED, best, metric)
    placebo = compared.difference(FEDERATED, baselines.placebo, metric) if baselines.placebo in values else None
    verdict: Verdict = "not comparable" if difference is None else _verdict(difference, placebo)
    if difference is None or best is None:
        reason = baselines.why_none if best is None else "all test rows have the same outcome, so AUROC is not defined"
        sentences = [f"{_OPENINGS[verdict]}: {reason}."]
    else:
        sentences = [f"{_OPENINGS[verdict]}.", *_figures(rows, difference, _other(best, baselines))]
        sentences += [f"The comparison used {_counts(rows)}.", f"The {_span(difference, ' is')}."]
    if placebo is not None:
        sentences.append(f"The placebo is {_PLACEBOS[baselines.placebo]}.")
        sentences.append(f"Compared with placebo, the other hospitals {_BROUGHT[placebo.better]} ({_span(placebo)}).")
    elif verdict == "better, cause not shown":
        sentences.append("This run has no placebo for comparison, so averaging alone may explain the difference.")
    return Gain(
        metric=metric,
        federated=values[FEDERATED],
        siloed=values.get(SILOED),
        best_local=best,
        difference=difference,
        placebo=placebo,
        verdict=verdict,
        sentence=" ".join(sentences),
        warnings=tuple(_warnings(rows, compared)),
    )


def _verdict(difference: Difference, placebo: Difference | None) -> Verdict:
    match difference.better:
        case True:
            return "gained" if placebo is not None and placebo.better is True else "better, cause not shown"
        case False:
            return "lost"
        case None:
            return "no clear difference"


def _other(best: str, baselines: Baselines) -> str:
    if best in TITLES:
        return f"The best local model ({TITLES[best]}, chosen on the training rows)"
    return "The model trained alone" if baselines.placebo == SILOED else "The same network trained alone"


def _figures(rows: HeldOutRows, difference: Difference, other: str) -> Iterator[str]:
    first, second = difference.first, difference.second
    if difference.metric == "rmse":
        unit = f" {rows.unit}" if rows.unit else ""
        yield f"The root mean square error of the federated model is {first:.4g}{unit}."
        yield f"{other} has an error of {second:.4g}{unit}."
        return
    noun = _noun(rows)
    pairs = (
        f"one {noun} with the outcome and one {noun} without it"
        if rows.task == "binary"
        else f"one {noun} of a class and one {noun} of another class, averaged over the classes"
    )
    yield f"Of 100 pairs of {pairs}, the federated model ranks {100 * first:.1f} pairs correctly."
    yield f"{other} ranks {100 * second:.1f} pairs correctly."


def _span(difference: Difference, verb: str = "") -> str:
    name, digits = METRIC_NAMES[difference.metric], ".3g" if difference.metric == "rmse" else ".3f"
    text = f"difference in {name}{verb} {difference.value:+{digits}}"
    if difference.interval is None:
        return text
    return f"{text}, 95% interval {difference.interval.low:+{digits}} to {difference.interval.high:+{digits}}"


def _counts(rows: HeldOutRows) -> str:
    total = f"{len(rows)} test {_noun(rows)}s"
    if not rows.classes:
        return total
    by_class = rows.class_counts
    if rows.task == "binary":
        return f"{total}, {by_class[1]} with the outcome and {by_class[0]} without it"
    return f"{total}, {min(by_class)} to {max(by_class)} of each class"


def _noun(rows: HeldOutRows) -> str:
    return "patient" if rows.patients is not None and len(np.unique(rows.patients)) == len(rows) else "row"


def _warnings(rows: HeldOutRows, compared: Compared) -> Iterator[str]:
    noun = _noun(rows)
    if not rows.classes:
        if len(rows) < FEWEST_NUMBERS:
            yield f"The test has only {len(rows)} {noun}s: too few for a conclusion (fewer than {FEWEST_NUMBERS})."
    else:
        fewest, rarest = min(zip(rows.class_counts, rows.classes, strict=True))
        if fewest < FEWEST_OF_A_CLASS:
            whom = f"{len(np.unique(rows.owners))} test {'rows' if rows.patients is None else 'patients'}"
            yield (
                f"Only {fewest} of the {whom} have the outcome {rarest}: too few for a conclusion (fewer than "
                f"{FEWEST_OF_A_CLASS})."
            )
    for name in TITLES:
        found = compared.difference(name, FEDERATED, headline_metric(rows.task)) if name in compared.metrics else None
        if found is not None and found.better:
            yield (
                f"A model of {TITLES[name]} on this site's own rows is clearly better than the federated model"
                f" ({_span(found)})."
            )
