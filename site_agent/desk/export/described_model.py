"""Describes a saved model's columns, their rules and its outcome for the file model.json, which loader.py reads."""

from __future__ import annotations

from typing import Any, assert_never

from site_agent.desk.export.export_inputs import other_day, other_days
from site_agent.desk.results.saved_model import SavedModel
from site_agent.trainer.data.cell_rules import MISSING, CodeRule, DateRule, NumberRule, TermsRule
from site_agent.trainer.data.cells import Spelling, date_rule, feature_rule, interval_rule, spelling_of
from site_agent.trainer.data.columns import CategoricalFeature, DateFeature, Feature, ImageColumn
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.disk import Json


def description_of(model: SavedModel, run: str) -> dict[str, Json]:
    """Return the content of the file model.json, which describes the model's inputs and outputs."""
    contract = model.preprocessing.contract
    target, spelling = contract.target, spelling_of(contract)
    return {
        "format": "global-layers export 4",
        "run": run,
        "plan_digest": model.plan.digest.hex(),
        "task": target.task,
        "classes": list(target.classes),
        "outcome": {"unit": target.unit if target.task == "regression" else None, "answers": target.answers},
        "decimal": contract.format.decimal,
        "features": _features(model, spelling),
        "days": [
            {"name": one.name, "required": True, "rule": rule_facts(date_rule(one, spelling))}
            for one in other_days(contract)
        ],
        "terms": [
            {"name": one.name, "required": one.required, "rule": rule_facts(one.rule(contract.missing_markers))}
            for one in contract.terms
        ],
        "image": None if contract.image is None else _image(contract.image),
    }


def _features(model: SavedModel, spelling: Spelling) -> list[Json]:
    """Return for each feature the rule for its cells, and the limits outside which a row has no prediction."""
    contract = model.preprocessing.contract
    limits = {one.name: [one.low, one.high] for one in model.profile.columns} if model.profile else {}
    return [
        {
            "name": feature.name,
            "unit": None if isinstance(feature, CategoricalFeature) else feature.unit,
            "required": feature.required,
            "limits": limits.get(feature.name, [None, None]),
            "rule": rule_facts(
                date_rule(feature, spelling) if isinstance(feature, DateFeature) else feature_rule(feature, spelling)
            ),
            "interval": _interval(contract, feature),
        }
        for feature in contract.features
    ]


def _interval(contract: Contract, feature: Feature) -> Json:
    """Describe how a date is converted to the number of days or years since or until another day."""
    if not isinstance(feature, DateFeature):
        return None
    (column, day), rule = other_day(contract, feature), interval_rule(feature)
    return {
        "sign": rule.sign,
        "divisor": rule.divisor,
        "unit": rule.unit,
        "refuses_missing": rule.refuses_missing,
        "range": list(rule.limits),
        "other": None if column is None else feature.other,
        "day": day,
    }


def _image(column: ImageColumn) -> Json:
    return {
        "name": column.name,
        "channels": column.image.channels,
        "height": column.image.height,
        "width": column.image.width,
        "lowest": column.lowest,
        "highest": column.highest,
        "window": list(column.limits),
    }


def rule_facts(rule: NumberRule | CodeRule | DateRule | TermsRule) -> dict[str, Any]:
    """Return the rule for a cell as plain data. Codes are in the order of their positions."""
    missing = sorted(rule.markers)
    match rule:
        case NumberRule(refuses_missing=refuses, limits=limits):
            number = {"kind": "number", "missing": missing, "refuses_missing": refuses, "range": list(limits)}
            return number if rule.detection_limit is None else {**number, "detection_limit": rule.detection_limit}
        case CodeRule(codes=places):
            codes = sorted(places, key=places.__getitem__)
            return {"kind": "code", "missing": missing, "refuses_missing": rule.missing is MISSING, "codes": codes}
        case DateRule(patterns=patterns, refuses_future=refuses, zone=zone):
            pattern = patterns[0] if len(patterns) == 1 else list(patterns)
            facts = {"kind": "date", "missing": missing, "pattern": pattern, "refuses_future": refuses}
            return facts if zone is None else {**facts, "zone": zone}
        case TermsRule():
            return {
                "kind": "terms",
                "missing": missing,
                "refuses_missing": rule.missing is MISSING,
                "separator": rule.separator,
                "codes": None if rule.codes is None else list(rule.codes),
                "buckets": rule.buckets,
            }
        case _:
            assert_never(rule)
