"""Compares a plan with earlier plans: lists all differences, and says what the sums of both show together.

Sums of two plans can be subtracted if their sites or their rules are not the same (protos/masking/answered_sets.py).
The gate refuses such sums unless enough persons allowed them. They read here what the coordinator could compute.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from host.record_store import Store
from protos.errors import ConfigurationError, DataError, OperatorError, RefusedError, explained
from protos.masking.answered_sets import answer_of, why_unlike
from protos.plan.manifest import manifest_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.statistics_plan import StatisticsPlan
from site_agent.desk.analyses_in_words import void_analyses
from site_agent.desk.plan_review import OCCASIONS, Section, Table, counted, largest
from site_agent.hospital import Hospital
from site_agent.trainer.data.contract import find_contract

if TYPE_CHECKING:
    from site_agent.trainer.answered_values import Values

_ARE_NAMES: Final = ("study", "version", "question", "timing", "sites", "what is sent")
_ARE_LISTED: Final = ("concepts", "columns", "analyses")
_UNFIT: Final = (DataError, ConfigurationError, RefusedError)  # a missing mount or a busy database ends by itself
_MOST_NAMED: Final = 12  # changes in one sentence


def unlike_plans(plan: Plan, others: Iterable[Plan]) -> list[Plan]:
    """Return the other plans whose sums show few sites together with those of a plan. Both must have masks."""
    mine = answer_of(plan)
    return [
        other
        for other in others
        if plan.masking.required and other.masking.required and why_unlike(mine, answer_of(other)) is not None
    ]


def compared_with_others(plan: Plan, others: Iterable[Plan], allowed: Iterable[str]) -> Section | None:
    """Return a section on what the sums of a plan and of other plans show together. None if they show nothing.

    `others` were ever approved here. `allowed` are the runs that enough persons here allowed beside this plan.
    """
    sentences = list[str]()
    for other in unlike_plans(plan, others):
        sentences.append(
            f"Together with the sums of the plan {other.run_name}, which was approved here, the coordinator could "
            f"compute {'; and '.join(dict.fromkeys(_computable(other, plan)))}."
        )
        if other.run_name in set(allowed):
            sentences.append(f"Persons here allowed the sums of {other.run_name} beside those of this plan.")
        else:
            sentences.append(
                f"This site takes part in both only if `site-agent approve` names {other.run_name} with --beside."
            )
    return Section("This table and other studies", tuple(sentences)) if sentences else None


def row_sections(hospital: Hospital, plan: Plan) -> Iterator[Section]:
    """Yield this site's values, then unknown codes, cut values, void analyses, why it cannot train, and other studies.

    Nothing is yielded if this user may not read the contract. If it is wrong or not there, OperatorError is raised.
    """
    from site_agent.desk.mapped_concepts import doubtful_codes, own_values
    from site_agent.trainer.before_rounds import faults, require_fit, statistics_rows
    from site_agent.trainer.data.tables import read_table
    from site_agent.trainer.statistics.concept_frame import doubts_of

    contract = find_contract(Path(hospital.data.contract), is_needed=isinstance(plan, StatisticsPlan))
    sentences, wrong = list[str](), list[OperatorError]()
    try:
        if contract is not None and isinstance(plan, NetworkPlan):
            require_fit(hospital, plan)
        if contract is None or not isinstance(plan, StatisticsPlan):
            return
        table = read_table(Path(hospital.data.table), contract, scratch=hospital.scratch_path)
        wrong += faults(hospital, plan, table)
        sentences += [f"{one.what} {one.remedy}" for one in wrong]
        frame, (used, cell, patients) = statistics_rows(hospital, plan, table)
        own = Table(("concept", "values, which stay here"), tuple(own_values(plan, table, frame, hospital.site)))
        yield Section("What this hospital would contribute", table=own)
        sentences += [*doubtful_codes(plan, contract, hospital.site), *doubts_of(plan, used, frame, contract)]
        if plan.privacy is None:
            sentences += void_analyses(plan, frame, hospital.site)
            sentences += _differing(hospital.state_path / "models", plan.run_name, used, patients, cell)
    except (OperatorError, OSError) as error:
        sentences.append(f"The rows of this plan cannot be used now. {explained(error).what}")
        if isinstance(error, _UNFIT) and not isinstance(error.__cause__, OSError):
            wrong.append(error)
    if sentences:
        yield Section("This hospital's rows", tuple(sentences), error=next(iter(wrong), None))


def _differing(
    memory: Path, run: str, used: Mapping[str, Values], patients: Sequence[str] | None, cell: int
) -> Iterator[str]:
    """Yield for each earlier run in how many patients a run differs, and whether this site will refuse to answer."""
    from site_agent.trainer.answered_values import compared, digests_of, in_words
    from site_agent.trainer.disk import RECORDS

    if not (memory / RECORDS).exists():
        return
    with closing(Store(memory / RECORDS, exists=True)) as store:
        for one in compared(store, run, used, digests_of(memory, used, patients), cell):
            differ = f"differ from those of {one.run} by {counted(one.patients, 'patient')} of this site."
            if one.too_few:
                differ += (
                    f" In each column and pair of columns none or at least {cell} must differ, and too few do in "
                    f"{in_words(one.too_few)}. So this site will refuse to answer, and the run will end for all. Put "
                    "all covariates into one plan before its first run. Now leave these out, or take the table of that "
                    "time."
                )
            yield f"The rows of this plan {differ}"


def _computable(other: Plan, plan: Plan) -> Iterator[str]:
    """Yield what the difference of two plans' sums shows, each as a noun with its sites."""
    mine, theirs = _contributors(plan), _contributors(other)
    if apart := sorted({(mine | theirs)[key] for key in mine.keys() ^ theirs.keys()}):
        yield f"what the sites that only one of the plans has contributed: {', '.join(apart)}"
    before, after = dict(_flat(other)), dict(_flat(plan))
    added, removed = _only_in(after, before), _only_in(before, after)
    settings = [f"{name} (only in {plan.run_name})" for name in added]
    settings += [f"{name} (only in {other.run_name})" for name in removed]
    if named := [key.partition(".")[2] for key in (*added, *removed) if key.startswith("concepts.")]:
        yield f"the numbers of the patients without a value of {' or '.join(named)}, if an analysis or a model uses it"
    for key in dict.fromkeys((*before, *after)):
        name, _, last = key.partition(".")[2].rpartition(".")
        is_alone = _listed(key) in {*added, *removed}
        if (is_alone and last != "recorded_by") or before.get(key) == after.get(key) or key.split(".")[0] in _ARE_NAMES:
            continue
        if last == "recorded_by":
            listed = (str(found.get(key, "null")) for found in (before, after))
            one, two = (set(plan.site_names if text in ("null", "absent") else json.loads(text)) for text in listed)
            whose = f"do not record {name}" if is_alone else f"only one plan lists for {name}"
            if one != two:
                yield f"the own numbers of the sites that {whose}: {', '.join(sorted(one ^ two))}"
        elif last in ("low", "high") and key in before and key in after:
            yield f"the values of {name} beyond the changed limit, exactly if only one patient has one"
        elif last == "conversions":
            yield f"the own numbers of {name} of the sites that use the changed unit, exactly if only one site does"
        else:
            settings.append(f"{key} (was {before.get(key, 'absent')}, is {after.get(key, 'absent')})")
            if key.startswith("weighting"):
                yield "the own update of each site whose weight changes, exactly if only one site's does"
            elif key.startswith(("masking.clipping_range", "optimiser")):
                yield "single values of single sites, which one of the settings clips and the other one does not"
    if settings:
        more = f" and {len(settings) - _MOST_NAMED} more" if len(settings) > _MOST_NAMED else ""
        yield (
            "the own numbers of a site, if a change changes the numbers of this site alone. Changed are "
            f"{', '.join(settings[:_MOST_NAMED])}{more}"
        )


def _only_in(one: Iterable[str], other: Iterable[str]) -> list[str]:
    others = set(map(_listed, other))
    return [name for name in dict.fromkeys(map(_listed, one)) if name and name not in others]


def _listed(key: str) -> str:
    """Return the key of the concept, column or analysis to which a key belongs; empty for another key."""
    first, *rest = key.split(".")
    return f"{first}.{rest[0]}" if rest and first in _ARE_LISTED else ""


def _contributors(plan: Plan) -> dict[str, str]:
    return {site.identity: site.name for site in plan.sites if site.tier != "receiving"}


Json: TypeAlias = str | int | float | bool | list["Json"] | dict[str, "Json"] | None
Difference: TypeAlias = tuple[str, str, str]


def plan_differences(before: Plan, after: Plan) -> tuple[Difference, ...]:
    """Return changed settings, and what only one of two plans sends: subject, earlier and present value or "absent"."""
    old, new = dict(_flat(before)), dict(_flat(after))
    keys = dict.fromkeys((*old, *new))
    found = [(key, old.get(key, "absent"), new.get(key, "absent")) for key in keys if old.get(key) != new.get(key)]
    was, now = dict(_leaving(before)), dict(_leaving(after))
    names = dict.fromkeys((*was, *now))
    found += [(n, was.get(n, "absent"), now.get(n, "absent")) for n in names if was.get(n) != now.get(n)]
    return tuple(found)


def _leaving(plan: Plan) -> Iterator[tuple[str, str]]:
    if isinstance(plan, StatisticsPlan):  # thousands of numbers, which follow from the analyses
        for one, of in zip(plan.analyses, plan.arithmetics, strict=True):
            counts = f"{len(of.first)} once, {len(of.newton)} in each Newton round, {len(of.last)} at the end"
            yield f"what is sent: numbers of {one.name}", counts
        return
    manifest = manifest_of(plan)
    for tensor in manifest.tensors:
        yield f"what is sent: update of {tensor.name}", "x".join(map(str, tensor.shape))
    for scalar in manifest.scalars:
        yield f"what is sent: number {scalar.name}", f"{OCCASIONS[scalar.stage]}, at most {largest(scalar)}"


def _flat(plan: Plan) -> Iterator[tuple[str, str]]:
    content: dict[str, Json] = plan.model_dump(mode="json")
    # Sites are compared by name, because an added site would shift their positions.
    content["sites"] = {site.name: f"{site.identity} ({site.tier})" for site in plan.sites}
    # Concepts and columns too.
    for key in _ARE_LISTED:
        if isinstance(listed := content.get(key), list) and all(isinstance(one, dict) for one in listed):
            content[key] = {str(one["name"]).replace(".", "_"): one for one in listed if isinstance(one, dict)}
    for key, value in content.items():
        yield from _leaves(key, value)


def _leaves(key: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for inner, content in value.items():
            yield from _leaves(f"{key}.{inner}", content)
    else:
        yield key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
