"""Writes a model card, which describes a model's purpose, data and quality, and uses for which it is not suitable.

Source: Mitchell et al. 2019, "Model Cards for Model Reporting". People outside the hospital can read a card, so
counts of fewer than SMALLEST_CELL patients or rows are not shown. It has no range or code of a column, and shows
sites as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from protos.plan.network_plan import NetworkPlan
from protos.plan.privacy_in_words import price_in_words
from site_agent.desk.comparison.gain import FEDERATED, MODEL_TITLES, SILOED
from site_agent.desk.findings.clinical_parts import verdict
from site_agent.desk.findings.facts import RECEIVING, prior_rounds, saved_facts
from site_agent.desk.plan_review import network_terms
from site_agent.desk.use.model_in_use import ModelInUse
from site_agent.hospital import Hospital
from site_agent.trainer.data.contract import Contract

SMALLEST_CELL: Final = 10
_USE: Final = (
    "Research on patients like those of the training rows, at the hospital that trained this model. The model is not a"
    " medical device, not validated for decisions about patients, and not differentially private."
)
_NOT_FOR: Final = (
    "Decisions about a single patient; patients of other hospitals, ages or wards than in the training rows;"
    " tables that were recorded in another way; rows for which `site-agent predict` gives no prediction."
)


def model_card(hospital: Hospital, used: ModelInUse) -> str:
    """Return a model card as text in the Markdown format."""
    plan, contract = used.model.plan, used.model.preprocessing.contract
    saved: dict[str, Any] = saved_facts(hospital.state_path, used.run)
    reached = {"metrics": {}, "intervals": {}} if RECEIVING in saved else saved[used.name]
    lines = [
        f"# Model card: {plan.study}, run {used.run}",
        f"**Intended use.** {_USE}",
        f"**Not for.** {_NOT_FOR}",
        *(["## The question", _list(plan.question.model_dump(mode="json"))] if plan.question else []),
        "## Training",
        _list(_training(hospital, used, saved)),
        "## Data of this site",
        _list(
            {
                "outcome": f"{contract.target.name} ({contract.target.task})",
                "features": ", ".join(_features(contract)),
                "rows": ", ".join(f"{shown_count(count)} {part}" for part, count in saved["rows"].items()),
            }
        ),
        f"Counts below {SMALLEST_CELL} are not shown.",
        "## How good it was on this site's test rows",
        "| metric | value | 95% interval |\n|---|---|---|\n" + "\n".join(_metric_lines(reached)),
        _conclusion(used, saved),
        "## Software at the time of training",
        _list(saved.get("versions") or {}),
    ]
    return "\n\n".join(lines) + "\n"


def _training(hospital: Hospital, used: ModelInUse, saved: Mapping[str, Any]) -> dict[str, str]:
    plan, names = used.model.plan, [site.name for site in used.model.plan.sites]
    this_site = names.index(hospital.site) + 1 if hospital.site in names else "not in the plan"
    terms = network_terms(plan) if isinstance(plan, NetworkPlan) else ()
    promise = price_in_words(plan.privacy, plan.private_sums) if plan.privacy else "none"
    return {
        "plan digest": plan.digest.hex(),
        "method": plan.method_in_words,
        "this model": MODEL_TITLES.get(used.name, used.name),
        "adopted by": used.adoption.by if used.adoption else "nobody",
        "network": ". ".join((_built_of(used), *terms)),
        "rounds": _rounds(used, saved),
        "differential privacy of what the sites sent": promise,
        "sites": f"{len(names)}; this is site {this_site}",
    }


def shown_count(count: int) -> int | str:
    """Return a count of patients or rows, if it is large enough to be shown."""
    return count if count >= SMALLEST_CELL else f"fewer than {SMALLEST_CELL}"


def _conclusion(used: ModelInUse, saved: Mapping[str, Any]) -> str:
    if RECEIVING in saved:
        return str(saved[RECEIVING]["sentence"])
    return _told(saved["gain"]) if used.name == FEDERATED else _beside_federated(saved, used.name)


def _features(contract: Contract) -> list[str]:
    found = [feature.name for feature in contract.features]
    found += [] if contract.image is None else [f"{contract.image.name} (image of {contract.image.image})"]
    for one in contract.terms:
        kind = "list of codes" if one.type == "codes" else "note"
        found.append(f"{one.name} ({kind} in {len(one.encoded_columns)} columns)")
    return found


def _built_of(used: ModelInUse) -> str:
    if used.model.joined is not None and used.model.joined.weights[2] == 1.0:
        return "none: the other hospitals' score alone"
    if used.model.joined is not None:
        return "regression and forest" if used.name != FEDERATED else "regression, forest and the others' score"
    assert isinstance(used.model.plan, NetworkPlan)
    return used.model.plan.architecture.name


def _rounds(used: ModelInUse, saved: Mapping[str, Any]) -> str:
    """Return how many rounds a run made. Those of federated-prior may be fewer than the plan allows."""
    if used.name != FEDERATED:
        return "none: this model was trained without the patients of other hospitals"
    fitted, most = (saved.get(RECEIVING) or saved.get("prior") or {}).get("newton_rounds"), used.model.plan.rounds
    if fitted is not None:
        return f"{prior_rounds(fitted)}, and the plan allowed at most {most}"
    kept = saved[used.name].get("checkpoint", {}).get("round")
    return f"{most}; the model after round {kept} was kept"


def _metric_lines(facts: Mapping[str, Any]) -> Sequence[str]:
    lines = []
    for name, value in facts["metrics"].items():
        interval = facts["intervals"].get(name)
        shown = "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
        lines.append(f"| {name} | {'-' if value is None else f'{value:.3f}'} | {shown} |")
    return lines


def _list(facts: Mapping[str, Any]) -> str:
    return "\n".join(f"* {name.replace('_', ' ')}: {value}" for name, value in facts.items())


def _told(gain: Mapping[str, Any]) -> str:
    """Return the conclusion about the gain without numbers of test rows, because small numbers are not shown."""
    difference = gain["difference"]
    if difference is None:
        return "The model was not compared with a local model."
    low, high = gain["interval"] or (None, None)
    span = "" if low is None else f", 95% interval {low:+.3f} to {high:+.3f}"
    best = gain.get("best_local", SILOED)
    told = (
        f"Compared with {MODEL_TITLES.get(best, best)}: {gain['verdict']} ({gain['metric']} {difference:+.3f}{span})."
    )
    placebo = gain["placebo"]
    if placebo is None or placebo["interval"] is None:
        return f"{told} The run has no placebo for comparison."
    ends = placebo["interval"]
    return (
        f"{told} Compared with the placebo: {placebo['difference']:+.3f}, 95% interval {ends[0]:+.3f} to "
        f"{ends[1]:+.3f}."
    )


def _beside_federated(saved: Mapping[str, Any], name: str) -> str:
    """Return how a model of this hospital alone differs from the federated model on the same test rows."""
    metric = saved["gain"]["metric"]
    found = saved["differences"].get(name, {}).get(metric)  # the federated model minus this model
    if found is None:
        return "The model was not compared with the federated model."
    difference, ends = 0.0 - found["difference"], found["interval"]  # never -0.0
    interval = None if ends is None else (-ends[1], -ends[0])
    span = "" if interval is None else f", 95% interval {interval[0]:+.3f} to {interval[1]:+.3f}"
    words = verdict(metric, difference, interval)
    return f"Compared with the federated model: {words} ({metric} {difference:+.3f}{span})."
