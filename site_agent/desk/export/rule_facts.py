"""Converts the rules for reading cells and images to plain data for model.json. row_reader.py reads them back."""

from __future__ import annotations

from typing import Any, assert_never

from site_agent.trainer.data.cell_rules import MISSING, CodeRule, DateRule, IntervalRule, NumberRule, TermsRule
from site_agent.trainer.data.image_column import ImageColumn


def rule_facts(rule: NumberRule | CodeRule | DateRule | TermsRule) -> dict[str, Any]:
    """Return the rule for a cell as plain data. Codes are in the order of their positions."""
    missing = sorted(rule.markers)
    match rule:
        case NumberRule(refuses_missing=refuses, limits=limits):
            return {"kind": "number", "missing": missing, "refuses_missing": refuses, "range": list(limits)}
        case CodeRule(codes=places):
            codes = sorted(places, key=places.__getitem__)
            return {"kind": "code", "missing": missing, "refuses_missing": rule.missing is MISSING, "codes": codes}
        case DateRule(patterns=patterns, refuses_future=refuses):
            pattern = patterns[0] if len(patterns) == 1 else list(patterns)
            return {"kind": "date", "missing": missing, "pattern": pattern, "refuses_future": refuses}
        case TermsRule():
            return {
                "kind": "terms",
                "missing": missing,
                "refuses_missing": rule.missing is MISSING,
                "separator": rule.separator,
                "codes": None if rule.codes is None else list(rule.codes),
                "buckets": rule.buckets,
                "longest": rule.longest,
            }
        case _:
            assert_never(rule)


def interval_facts(rule: IntervalRule) -> dict[str, Any]:
    """Return the rule for the time between two days as plain data."""
    return {
        "sign": rule.sign,
        "divisor": rule.divisor,
        "unit": rule.unit,
        "refuses_missing": rule.refuses_missing,
        "range": list(rule.limits),
    }


def image_facts(column: ImageColumn) -> dict[str, Any]:
    """Return the size and the intensities that a model needs to read an image, as plain data."""
    return {
        "name": column.name,
        "channels": column.image.channels,
        "height": column.image.height,
        "width": column.image.width,
        "lowest": column.lowest,
        "highest": column.highest,
        "window": list(column.limits),
    }
