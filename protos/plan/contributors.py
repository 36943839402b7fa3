"""Computes from the plan which sites contribute to which numbers of the sum, and by which rule.

The smallest set is checked for every number, not only for the vector. A rule is everything in a plan that decides what
a named site contributes besides its rows: two sums over the same sites under different rules can be subtracted like
sums over different sites. The rules of this file:

* a site that only evaluates contributes zeros to the updates, and its own measurements to the other numbers;
* the plan names the sites that record a concept. The product of two columns has the sites that record both;
* the plan names the contributors of each column that only some sites record;
* a plan that sends no numbers has no kinds of numbers;
* every key of a plan is a part of its rule, unless it is listed here as one that cannot change a contribution. So a new
  key is a part of the rule.
"""

from __future__ import annotations

import json
from typing import Final

from protos.plan.analyses import concepts_used
from protos.plan.canonical import digest
from protos.plan.manifest import manifest_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.plan.statistics_plan import StatisticsPlan

UPDATES: Final = "changes"  # the word that stored ledgers use
FIGURES: Final = "figures"
# Names and words, and when rounds end. Sites are in a rule too, but not those that only receive.
_NO_RULE: Final = frozenset({"study", "version", "question", "timing", "sites"})


def smallest_set(plan: Plan, smallest_sites: int) -> int:
    """Return how many sites a combination of sums needs, so that at least two of them do not collude."""
    return max(smallest_sites, plan.assumed_colluders + 2)


def kinds_of(plan: Plan) -> dict[str, frozenset[str]]:
    """Return for each kind of number the names of the sites whose contribution may differ from 0."""
    everybody, has_figures, is_empty = frozenset(plan.site_names), True, False
    if isinstance(plan, NetworkPlan):  # other plans always send numbers, and their lists may be long
        manifest = manifest_of(plan)
        has_figures, is_empty = bool(manifest.scalars), not (manifest.tensors or manifest.scalars)
    kinds = {} if is_empty else {UPDATES: everybody - plan.evaluating_sites}
    if isinstance(plan, PriorPlan):
        sets = plan.recorders()
        kinds |= {f"concepts {' and '.join(names)}": sites for names, sites in sets.items() if sites != everybody}
    if isinstance(plan, StatisticsPlan):
        used = {names: plan.recorders(names) for one in plan.analyses for names in concepts_used(one)}
        kinds |= {f"concepts {' and '.join(names)}": sites for names, sites in used.items() if sites != everybody}
    if isinstance(plan, NetworkPlan):
        kinds |= {f"column {entry.name}": frozenset(entry.recorded_by or ()) for entry in plan.recorded_columns}
    return kinds | ({FIGURES: everybody} if has_figures else {})


def rule_of(plan: Plan) -> str:
    """Return the digest of a plan's rule, in hexadecimal. A site's name and identity key are in the rule together."""
    content = {key: value for key, value in json.loads(plan.canonical).items() if key not in _NO_RULE}
    sites = sorted((site.identity, site.name, site.tier) for site in plan.sites)
    content["sites"] = [site for site in sites if site[1] not in plan.receiving_sites]
    return digest("rule", json.dumps(content, sort_keys=True)).hex()
