"""Which group of patients a row belongs to: by the contract's declared groups, and by features on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from protos.errors import UsageError
from site_agent.trainer.data.column_profile import Profile
from site_agent.trainer.data.contract import CategoricalFeature, Feature
from site_agent.trainer.data.splits import Rows
from site_agent.trainer.data.tables import Numbers, Table

MISSING = "missing"


def group_values(
    table: Table, profile: Profile | None, rows: Rows, features: Sequence[str] = ()
) -> Mapping[str, Sequence[str]]:
    """For each group the value that each of these rows has.

    A feature with codes groups by its codes, a number by whether it is above the middle of the training rows.

    Args:
        table: the whole table.
        profile: of the training rows; without one no number can be a group.
        rows: int64 of shape (rows,), the rows that are asked about.
        features: names of features, beside the columns that the contract declares as groups.

    Raises:
        UsageError: a name is not that of a feature.
    """
    found: dict[str, Sequence[str]] = {name: [values[row] for row in rows] for name, values in table.groups.items()}
    known = {feature.name: feature for feature in table.contract.features}
    for name in features:
        if name not in known:
            raise UsageError(
                what=f"The contract has no feature {name}.",
                consequence="No report was made, and nothing left this site.",
                remedy="Give --group a column name that is in the contract, in the same spelling.",
            )
        found[name] = _by_feature(known[name], table.features[name][rows], profile)
    return found


def _by_feature(feature: Feature, values: Numbers, profile: Profile | None) -> list[str]:
    if isinstance(feature, CategoricalFeature):
        names = [*(feature.labels or feature.codes), MISSING]
        return [names[int(value)] for value in values]
    edges = [one.edges for one in profile.columns if one.name == feature.name] if profile else []
    if not edges or not edges[0]:
        return ["any" if not np.isnan(value) else MISSING for value in values]
    middle = edges[0][len(edges[0]) // 2]
    unit = f" {feature.unit}" if feature.unit else ""  # a date's is days or years
    names = [f"up to {middle:g}{unit}", f"above {middle:g}{unit}"]
    return [MISSING if np.isnan(value) else names[int(value > middle)] for value in values]
