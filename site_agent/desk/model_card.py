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
from site_agent.trainer.disk import Json

SMALLEST_CELL: Final = 10
SUPPRESSED: Final = f"fewer than {SMALLEST_CELL}"
_USE: Final = (
    "Research on patients like those of the training rows, at the hospital that trained this model. The model is not a"
    " medical device, not validated for decisions about patients, and not differentially private."
)
_NOT_FOR: Final = (
    "Decisions about a single patient; patients of other hospitals, ages or wards than in the training rows;"
    " tables that were recorded in another way; rows for which `site-agent predict` gives no prediction."
)


def card_facts(hospital: Hospital, used: ModelInUse) -> dict[str, Json]:
    """Return the content of a model card, ready for JSON."""
    run, model, plan = used.run, used.model, used.model.plan
    contract = model.preprocessing.contract
    saved: dict[str, Any] = saved_facts(hospital.state_path, run)
    names = [site.name for site in plan.sites]
    measured = _untested(saved) if RECEIVING in saved else _measured(used, saved)
    return {
        "run": run,
        "model": used.name,
        "adopted_by": used.adoption.by if used.adoption else None,
        "intended_use": _USE,
        "not_for": _NOT_FOR,
        "study": plan.study,
        "plan_digest": plan.digest.hex(),
        "method": plan.method_in_words,
        "question": None if plan.question is None else plan.question.model_dump(mode="json"),
        "architecture": _built_of(used),
        "network_terms": [*network_terms(plan)] if isinstance(plan, NetworkPlan) else [],
        "rounds": plan.rounds,
        "rounds_made": _prior_rounds(saved),
        "privacy": None if plan.privacy is None else price_in_words(plan.privacy, plan.private_sums),
        "sites": len(names),
        "this_site": names.index(hospital.site) + 1 if hospital.site in names else None,
        "task": contract.target.task,
        "target": contract.target.name,
        "features": _features(contract),
        "rows": {part: count if count >= SMALLEST_CELL else SUPPRESSED for part, count in saved["rows"].items()},
        **measured,
        "versions": saved.get("versions"),
    }


def _measured(used: ModelInUse, saved: Mapping[str, Any]) -> dict[str, Json]:
    reached = saved[used.name]
    return {
        "checkpoint_round": None if "prior" in saved else reached.get("checkpoint", {}).get("round"),
        "metrics": reached["metrics"],
        "intervals": reached["intervals"],
        "conclusion": _told(saved["gain"]) if used.name == FEDERATED else _beside_federated(saved, used.name),
    }


def _untested(saved: Mapping[str, Any]) -> dict[str, Json]:
    return {
        "checkpoint_round": None,
        "metrics": {},
        "intervals": {},
        "conclusion": saved[RECEIVING]["sentence"],
    }


def _prior_rounds(saved: Mapping[str, Any]) -> int | None:
    """Return how many rounds a run of federated-prior made, or None for another method. It may end before the plan."""
    fitted = (saved.get(RECEIVING) or saved.get("prior") or {}).get("newton_rounds")
    return None if fitted is None else prior_rounds(fitted)


def _features(contract: Contract) -> list[Json]:
    found: list[Json] = [feature.name for feature in contract.features]
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


def card_markdown(facts: Mapping[str, Any]) -> str:
    """Return the model card as text in the Markdown format."""
    lines = [
        f"# Model card: {facts['study']}, run {facts['run']}",
        f"**Intended use.** {facts['intended_use']}",
        f"**Not for.** {facts['not_for']}",
        *(["## The question", _list(facts["question"])] if facts["question"] else []),
        "## Training",
        _list(
            {
                "plan digest": facts["plan_digest"],
                "method": facts["method"],
                "this model": MODEL_TITLES.get(facts["model"], facts["model"]),
                "adopted by": facts["adopted_by"] or "nobody",
                "network": ". ".join((facts["architecture"], *facts["network_terms"])),
                "rounds": _rounds(facts),
                "differential privacy of what the sites sent": facts["privacy"] or "none",
                "sites": f"{facts['sites']}; this is site {facts['this_site'] or 'not in the plan'}",
            }
        ),
        "## Data of this site",
        _list(
            {
                "outcome": f"{facts['target']} ({facts['task']})",
                "features": ", ".join(facts["features"]),
                "rows": ", ".join(f"{count} {part}" for part, count in facts["rows"].items()),
            }
        ),
        f"Counts below {SMALLEST_CELL} are not shown.",
        "## How good it was on this site's test rows",
        "| metric | value | 95% interval |\n|---|---|---|\n" + "\n".join(_metric_lines(facts)),
        str(facts["conclusion"]),
        "## Software at the time of training",
        _list(facts["versions"] or {}),
    ]
    return "\n\n".join(lines) + "\n"


def _rounds(facts: Mapping[str, Any]) -> str:
    if facts["model"] != FEDERATED:
        return "none: this model was trained without the patients of other hospitals"
    if facts["rounds_made"] is not None:
        return f"{facts['rounds_made']}, and the plan allowed at most {facts['rounds']}"
    return f"{facts['rounds']}; the model after round {facts['checkpoint_round']} was kept"


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
