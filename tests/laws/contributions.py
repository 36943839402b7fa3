"""Four hospitals with a plan that masks, what each of them sends, and how many contribute to each number. The hospitals
have no weight decay, which would move the numbers of a column that a site does not record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from protos.plan.plan import Plan
from site_agent.trainer.data.dataset import Dataset
from tests.laws.catalogue import COLUMNS, plan_of_a_table, rows_at
from tests.site_agent.trainer.methods.tiny import Federation

SITES: Final = ("ahus", "berlin", "cluj", "dijon")
LACKING: Final[Mapping[str, str]] = {"dijon": "b"}
SMALLEST: Final = 3
SEEDS: Final = 6


def plan_for(name: str, **changes: Any) -> Plan:
    """The catalogue's plan of a method with four masked sites, one of which does not record the column b."""
    usual = plan_of_a_table(name)
    recorded = {"b": [site for site in SITES if site not in LACKING]}
    adam = {"name": "adamw", "learning_rate": 0.05, "weight_decay": 0.0}
    return plan_of_a_table(
        name,
        sites=[{"name": site, "identity": "-".join(["aaa" + site[0]] * 8)} for site in SITES],
        masking={"required": True},
        columns=[{"name": name, "recorded_by": recorded.get(name)} for name in usual.columns],
        optimiser=adam if usual.optimiser.name == "adamw" else usual.optimiser.model_dump(mode="json"),
        **changes,
    )


def _dataset_of(site: str, lacking: Mapping[str, str] = LACKING) -> Dataset:
    seed = SITES.index(site)
    whole = rows_at("ahus", seed=seed)
    kept = [place for place, column in enumerate(COLUMNS) if lacking.get(site) != column]

    def narrow(part: Any) -> Any:
        return replace(part, features=part.features[:, kept])

    parts = {part: narrow(getattr(whole, part)) for part in ("training", "validation", "test")}
    return replace(whole, columns=tuple(COLUMNS[place] for place in kept), **parts)


def contributors(plan: Plan, lacking: Mapping[str, str] = LACKING) -> dict[str, int]:
    """Return for each sent number, by tensor and place or by scalar, how many sites can contribute more than 0. A unit
    may be dead at a site for some first values, so several are tried until every number has enough sites."""
    seen: dict[str, set[str]] = {}
    for seed in range(SEEDS):
        again = plan.model_copy(update={"start": plan.start.model_copy(update={"seed": seed})})
        for name, sites in _contributed(again, lacking):
            seen.setdefault(name, set()).update(sites)
        if all(not sites or len(sites) >= SMALLEST for sites in seen.values()):
            break
    return {name: len(sites) for name, sites in seen.items()}


def _contributed(plan: Plan, lacking: Mapping[str, str]) -> Iterator[tuple[str, set[str]]]:
    federation = Federation(plan, {site: _dataset_of(site, lacking) for site in SITES})
    for number in range(plan.rounds):
        exchange = federation.run.offered(number).exchange
        names = [f"{tensor.name}[{place}]" for tensor in exchange.up for place in range(tensor.number_count)]
        names += [scalar.name for scalar in exchange.scalars if scalar.name != "rows"]
        for site, answer in federation.round(number).items():
            values = (*answer.updates.tolist(), *answer.scalars)
            yield from ((name, {site} if value else set()) for name, value in zip(names, values, strict=True))
