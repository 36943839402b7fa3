"""Defines how a site's columns are encoded as numbers: one recipe for each interpretation of the paper.

A recipe turns a hospital's contract into another contract. The deployment's own preprocessing then does the rest, and
fits only on training rows. So this file handles no rows. docs/researcher.md, "Methods",
lists the readings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from site_agent.trainer.data.columns import CategoricalFeature, Feature, IgnoredColumn, NumericFeature
from site_agent.trainer.data.contract import Column, Contract

# Whole numbers that some rows lack ("?"). As codes 0, 1, 2, ... their positions equal their values, and a missing value
# is -1, as in both interpretations of the paper.
_CODES_WITH_MISSING: Final = {"ca": tuple("0123"), "thal": tuple("01234567")}


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Encodes numbers as z-scores, and codes as z-scores of their position (-1 if missing) in the declared list.

    The paper does not say whether positions are scaled afterwards; the deployment's ordinal encoding does.
    """


@dataclass(frozen=True, kw_only=True)
class Authors:
    """Encodes cells by their spelling: numbers as z-scores, with "?" replaced by -1, and words as positions.

    Differs from `Paper` in four things. Positions of words are not scaled. The codes 3, 6 and 7 of `thal` remain these
    numbers. A code that the training rows lack remains a number. In Cleveland's label, 1 means no disease.
    """


@dataclass(frozen=True, kw_only=True)
class Statistician:
    """Encodes words, `ca`, and codes with more than two values as one column for each code, all else as z-scores.

    The recipe whose logistic regressions reach AUROC 91.64, 77.60 and 87.03 over 101 seeds.
    """


@dataclass(frozen=True, kw_only=True)
class ColumnsOf:
    """Numeric columns of one site by declared name; all numeric columns if `columns` is None."""

    site: str
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Default:
    """Encodes columns as declared. A missing number is the median and a flag. Unknown codes are a separate category.

    Attributes:
        one_hot: a column of 0 and 1 for each code and for unknown; otherwise one z-scored position.
        keeps_yes_or_no: with one-hot codes, those that are 0 and 1 remain one z-scored position.
        piecewise_linear: numbers that become ten columns each (see `piecewise`). They differ between sites, because
            this helps only if trees are better than the linear model.
    """

    one_hot: bool = True
    keeps_yes_or_no: bool = False
    piecewise_linear: tuple[ColumnsOf, ...] = ()


Recipe: TypeAlias = Paper | Authors | Statistician | Default


def adapted(contract: Contract, recipe: Recipe, *, without: Iterable[str] = ()) -> Contract:
    """The contract under which the recipe reads a table.

    Args:
        contract: the table's declaration by a hospital.
        recipe: how to encode.
        without: declared names that are not read.
    """
    absent = set(without)
    columns = tuple(_adapted_column(column, recipe, absent) for column in contract.columns)
    return Contract(format=contract.format, missing_markers=contract.missing_markers, columns=columns)


def piecewise_columns(contract: Contract, recipe: Recipe, site: str) -> tuple[str, ...]:
    """The encoded names of a site's columns that the recipe wants piecewise linear, in declared order.

    Raises:
        ValueError: the recipe names a column that this site does not declare as a number.
    """
    if not isinstance(recipe, Default):
        return ()
    numeric = {
        feature.name: feature.encoded_columns[0] for feature in contract.features if isinstance(feature, NumericFeature)
    }
    wanted: set[str] = set()
    for choice in recipe.piecewise_linear:
        if choice.site == site:
            wanted |= set(numeric if choice.columns is None else choice.columns)
    if strangers := wanted - set(numeric):
        raise ValueError(f"{site} does not declare these as numbers: {', '.join(sorted(strangers))}")
    return tuple(encoded for name, encoded in numeric.items() if name in wanted)


def _adapted_column(column: Column, recipe: Recipe, absent: set[str]) -> Column:
    if column.name in absent:
        return IgnoredColumn(name=column.name, role="ignore")
    return _adapted_feature(column, recipe) if isinstance(column, NumericFeature | CategoricalFeature) else column


def _adapted_feature(feature: Feature, recipe: Recipe) -> Feature:
    is_incomplete_number = isinstance(feature, NumericFeature) and feature.missing != "refuse"
    match recipe:
        case Paper():
            return _position(feature, _CODES_WITH_MISSING[feature.name]) if is_incomplete_number else feature
        case Authors():
            return _by_inferred_type(feature)
        case Statistician():
            if is_incomplete_number:
                feature = _position(feature, _CODES_WITH_MISSING[feature.name])
            return (
                _one_hot(feature) if isinstance(feature, CategoricalFeature) and not _is_yes_or_no(feature) else feature
            )
        case Default():
            if isinstance(feature, CategoricalFeature):
                stays = recipe.keeps_yes_or_no and _is_yes_or_no(feature)
                return _one_hot(feature) if recipe.one_hot and not stays else feature
            return feature.model_copy(update={"missing": "median-and-flag"}) if is_incomplete_number else feature
        case _:
            assert_never(recipe)


def _position(feature: Feature, codes: tuple[str, ...]) -> CategoricalFeature:
    return CategoricalFeature(
        name=feature.name, role="feature", type="categorical", codes=codes, missing_markers=feature.missing_markers
    )


def _one_hot(feature: CategoricalFeature) -> CategoricalFeature:
    return feature.model_copy(update={"encoding": "one-hot"})


def _by_inferred_type(feature: Feature) -> Feature:
    """A number unless its cells are words, without its declared range and markers."""
    if feature.name in _CODES_WITH_MISSING:
        return _position(feature, _CODES_WITH_MISSING[feature.name])
    if isinstance(feature, CategoricalFeature) and not all(code.isdigit() for code in feature.codes):
        return feature
    return NumericFeature(name=feature.name, role="feature", type="numeric")


def _is_yes_or_no(feature: CategoricalFeature) -> bool:
    return feature.codes == ("0", "1")
