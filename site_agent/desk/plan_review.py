"""Explains in the review of a plan which numbers the plan would send from this site.

A person approves a plan by this page. So it names everything that may be sent, when, its largest size and its
meaning. The gate cannot send anything else (gate/door.py). The terminal and the printed page show the same sections.
The printed page has no script and no link, and loads nothing. `host.printed_page` escapes every word of a plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from host.printed_page import Section as Part
from host.printed_page import page, paragraph, table
from protos.errors import OperatorError
from protos.fingerprints import grouped
from protos.plan.architecture import NamedTensors
from protos.plan.ingredients import SensitivePrefix
from protos.plan.manifest import ROWS, Manifest, Scalar, most_bytes, rounds_with
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.plan.prior_sums import FEWEST_ROWS
from protos.plan.private_training import PrivateTraining
from protos.plan.statistics_plan import StatisticsPlan
from protos.plan.weighting import RowWeights
from protos.wire.messages import Stage

OCCASIONS: Final = {
    Stage.TRAINING: "every training round",
    Stage.VALIDATION: "training rounds that begin with an epoch, and the validation round",
    Stage.PROBE: "the probe",
    Stage.STATISTICS: "the statistics",
    Stage.NEWTON: "every Newton round",
    Stage.GUARD: "the last round",
}
_LARGE: Final = 100_000  # numbers above this limit are shown with grouped digits and without decimals
# The meaning of each number that is sent, by the whole name of the number or the first word of the name.
_MEANING: Final = {
    "rows": "the number of this site's training rows, rounded to two significant bits",
    "sensitivity": "how much the loss depends on the layers up to this layer, times this site's weight",
    "validation weight": "the number of this site's validation rows, rounded to two significant bits, or 1 if all "
    "weights are equal",
    "validation loss": "the loss of the received model on this site's validation rows, times this site's weight",
    "count": "how many rows of this site are in this group, or 0 if they are too few",
    "sum": "the sum of these rows' values, each converted from the declared range to 0..1",
    "squares": "the sum of the squares of these values",
    "voids": "1 if this site has too few different values of this column, and sends random integers, otherwise 0",
    "outcomes": "the number of this site's training rows",
    "patients": "the number of their patients",
    "private hessian": "how the values of these two columns vary together, with a limit for each patient, plus noise",
    "private gradient": "how this site's patients would change this number of the model, with a limit for each "
    "patient, plus noise",
    "hessian": "the sum over this site's training rows of the products of these two columns, each with a weight",
    "gradient": "the sum over this site's training rows of this column's value times the error of the prediction",
    "guard": "how much the score of the other sites lowers the loss on this site's training rows (if negative: raises "
    "it)",
}
_TABLES: Final = "Only the numbers in the tables below are sent."
_KEPT: Final = {
    "latest": "of the last round",
    "local": "that is best on its own validation rows",
    "global": "with the lowest validation loss, summed over sites",
}


@dataclass(frozen=True)
class Table:
    """A table of texts with a header row."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """A section of the review: a heading, sentences, perhaps a table, and why this site cannot take part."""

    heading: str
    sentences: tuple[str, ...] = ()
    table: Table | None = None
    error: OperatorError | None = None


def review_sections(plan: Plan, manifest: Manifest) -> Iterator[Section]:
    """Yield the sections of the review that need only the plan, and not the files of this site."""
    yield Section(
        f"Study {plan.study}, version {plan.version}",
        (
            f"Plan digest {plan.digest.hex()}",
            f"Digest of what is sent {manifest.digest.hex()}",
            f"Method {plan.method_name}, masking {'required' if plan.masking.required else 'off'}",
        ),
    )
    yield _who(plan)
    yield Section("When numbers are sent", tuple(_rounds(plan)))
    if not isinstance(plan, StatisticsPlan):  # its section Analyses has all that is sent
        yield _updates(plan, manifest)
        yield _numbers(plan, manifest)
        yield Section("What else the plan decides", tuple(_choices(plan)))
    total = f"In the whole run this site sends at most {most_bytes(plan, manifest)} bytes."
    yield Section("In all", (total, "This site sends nothing else."))


def counted(number: int, word: str) -> str:
    """Return a number with its noun: 1 round, 2 rounds."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def as_lines(sections: Iterable[Section]) -> Iterator[str]:
    """Yield the sections of the review as lines for a terminal."""
    for section in sections:
        yield section.heading
        yield from (f"  {sentence}" for sentence in section.sentences)
        if section.table is not None:
            rows = (section.table.head, *section.table.rows)
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for row in rows:
                yield "    " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _who(plan: Plan) -> Section:
    sentences = list[str]()
    if plan.evaluating_sites:
        tests = f"{len(plan.evaluating_sites)} of the listed sites only test models."
        sentences.append(f"{tests} Such a site sends zeros in place of updates.")
    if plan.receiving_sites:
        sentences.append(
            f"{len(plan.receiving_sites)} of the listed sites only receive results. Such a receiving site sends no "
            "number, so no sum includes a number of this site. A receiving site sees the same sums as every "
            "contributing site. The other sites refuse a later plan to which a receiving site contributes, because the "
            "difference of both sums would be its own contribution."
        )
    sentences.append(
        "The same sites take part in every round. If a site loses its connection, all others wait for that site."
    )
    sentences.append(
        "Before you approve, two persons of this hospital call each other hospital, by a number that did not come from "
        f"the federation office. Both hospitals read the number of the plan aloud: {grouped(plan.digest[:20])}. Then "
        "each reads its own line of this list. If anything differs, do not approve: the office may list a hospital "
        "that does not exist."
    )
    rows = tuple((site.name, site.identity, plan.tier_of(site.name)) for site in plan.sites)
    sites = Table(("site", "identity key", "takes part in"), rows)
    return Section("Who takes part, and who sees what", tuple(sentences), sites)


def _rounds(plan: Plan) -> Iterator[str]:
    yield f"The run has {'at most ' if plan.may_end_early else ''}{counted(plan.rounds, 'round')}:"
    if isinstance(plan, StatisticsPlan):
        yield "1 round of counts and sums."
        if plan.training_rounds:
            yield f"At most {counted(plan.training_rounds, 'round')} of Newton's method, together for all models."
            yield "1 last round at the estimates, for standard errors and tests."
        if plan.privacy is not None:
            yield (
                f"All rows of one patient together have at most the influence of {plan.privacy.clip:g} complete "
                f"{'row' if plan.privacy.clip == 1 else 'rows'}. Random noise is added to every number. Therefore the "
                "results of small groups of patients are sent too."
            )
        return
    if plan.private_training is not None:
        yield f"{counted(plan.training_rounds, 'round')} of training: this site sends only sums with random noise."
        return
    if plan.privacy is not None:
        yield "1 round of statistics: this site sends sums for a regression on the common columns, with random noise."
        return
    if isinstance(plan, PriorPlan):
        yield "1 round of statistics: this site sends only the numbers in the tables below, for each common column."
        steps = f"At most {counted(plan.training_rounds, 'round')} of the regression (Newton's method)"
        yield f"{steps}: this site sends sums over the common columns."
        yield "1 guard round: one number is sent. It shows whether the other sites' score improves the predictions."
        return
    if plan.has_probe:
        yield f"1 probe round: the site trains one pass over its rows, measures the result and discards it. {_TABLES}"
    sent = "only the fact that it takes part" if plan.method_name == "local" else "updates of parameters"
    yield f"{counted(plan.training_rounds, 'round')} of training: this site sends {sent}."
    if plan.has_validation_round:
        yield f"1 round of validation: the site tests the last shared model. {_TABLES}"


def _updates(plan: Plan, manifest: Manifest) -> Section:
    method, heading = plan.ingredients, "Updates of parameters"
    if not manifest.tensors:
        return Section(heading, ("The plan shares no parameter of a model, so no update of a parameter is sent.",))
    if plan.private_training is not None:
        sums = "No update of a model's parameter is sent. The site sends sums of gradients with random noise."
        return Section(heading, (sums,))
    which = ""
    if isinstance(method.federated, SensitivePrefix):
        which = (
            " In the probe round, each site measures how much the model's loss depends on each layer. After this "
            "measurement, the update may contain only the first layers of the model."
        )
    encoding = plan.masking
    sentences = (
        f"In each round of training this site sends how much the values of {counted(len(manifest.tensors), 'tensor')} "
        f"(blocks of the model's numbers) changed.{which}",
        f"Each value is limited to -{encoding.clipping_range:g} to {encoding.clipping_range:g}. If more than "
        f"{encoding.largest_clipped_share:.2%} of the values are outside, this site sends a void.",
    )
    rows = tuple(
        (
            tensor.name,
            "x".join(map(str, tensor.shape)),
            f"{plan.bits}-bit integers",
            str(plan.bits // 8 * tensor.number_count),
        )
        for tensor in manifest.tensors
    )
    return Section(heading, sentences, Table(("tensor", "shape", "type", "bytes a round"), rows))


def _numbers(plan: Plan, manifest: Manifest) -> Section:
    heading = "Other numbers"
    if not manifest.scalars:
        return Section(heading, ("Apart from the values above, no number is sent.",))
    rows = tuple(
        (
            scalar.name if count == 1 else f"{_kind(scalar)} ({count} numbers)",
            _meaning(plan, scalar),
            f"{'+-' if scalar.is_signed else ''}{largest(scalar)}",
            f"{OCCASIONS[scalar.stage]} ({counted(rounds_with(plan, scalar.stage), 'time')})",
        )
        for scalar, count in _grouped(manifest.scalars)
    )
    return Section(heading, table=Table(("number", "what it is", "at most", "when"), rows))


def largest(scalar: Scalar) -> str:
    """Return the largest possible value of a sent number in plain digits, such as 1000000 and not 1e6."""
    value = scalar.bound / scalar.scale
    return f"{value:,.0f}" if value >= _LARGE else f"{value:g}"


def _grouped(scalars: Iterable[Scalar]) -> Iterator[tuple[Scalar, int]]:
    """Yield the numbers that the site sends, each with a count. Only the first of many similar numbers is yielded."""
    counts = Counter(kind for scalar in scalars if (kind := _kind(scalar)) is not None)
    told: set[str] = set()
    for scalar in scalars:
        kind = _kind(scalar)
        if kind is None:
            yield scalar, 1
        elif kind not in told:
            told.add(kind)
            yield scalar, counts[kind]


def _kind(scalar: Scalar) -> str | None:
    """Return the group of a number, if the review shows this group in a single line. Otherwise return None."""
    if scalar.name.startswith("private "):
        return scalar.name.partition(":")[0]
    return scalar.name.partition(" ")[0] if scalar.stage is Stage.NEWTON else None


def _meaning(plan: Plan, scalar: Scalar) -> str:
    if scalar.name == ROWS and isinstance(plan.site_weights, RowWeights) and plan.site_weights.exact:
        return "the number of this site's training rows, not rounded"
    kinds = (scalar.name, scalar.name.partition(":")[0], scalar.name.partition(" ")[0])
    return next(_MEANING[kind] for kind in kinds if kind in _MEANING)


def _of_three(prior: PriorPlan) -> Iterator[str]:
    """Warn about concepts that only three sites record, because one site can compute the sum of the two others."""
    if prior.fewest_sites > 3:
        return
    names = [concept for (concept, *more), sites in prior.recorders().items() if len(sites) == 3 and not more]
    which = (
        f"Only three hospitals record {', '.join(names)}" if names else "Some concepts may have only three hospitals"
    )
    yield (
        f"{which}. With the setting fewest_sites: 3, this plan permits a sum over only three hospitals. The default of "
        "fewest_sites is 4."
    )
    yield (
        "Two of the three can together compute the third's numbers, and each alone the sum of the two others. Approve "
        "the plan only if this hospital accepts this risk. Otherwise ask for a plan in which at least four sites "
        "record each concept, or for one with the key `privacy`, which adds random noise."
    )


def _of_prior(prior: PriorPlan) -> Iterator[str]:
    columns, concepts = len(prior.columns), len(prior.concepts)
    yield f"Every site receives the sums over all sites, for {columns} columns that encode {concepts} concepts."
    if prior.private is not None:
        yield (
            "Each site adds random noise to its numbers. The noise is too small to protect patients if more than "
            f"{prior.private.colluders} of the sites secretly work together. To standardise the columns, the sites use "
            "the ranges, typical values and spreads in the plan."
        )
        return
    yield from _of_three(prior)
    yield (
        f"If at one site fewer than {FEWEST_ROWS} values of a column differ from the most frequent value, or fewer "
        "rows have a code, no site uses this column."
    )


def _of_private_training(plan: Plan, training: PrivateTraining) -> Iterator[str]:
    limit = f"The influence of each patient is limited (norm {training.promise.clip:g})."
    if training.is_local:
        yield f"{limit} Each site itself adds the full noise in each of {training.steps} steps of a round."
    else:
        yield (
            f"{limit} Each site adds noise. The noise is enough for all {training.rounds} rounds, if at most "
            f"{plan.assumed_colluders} of the sites secretly work together."
        )
    yield f"Each sum is divided by {training.promise.patients}, the number of patients that the plan declares."


def _of_columns(plan: NetworkPlan) -> Iterator[str]:
    if plan.columns:
        yield f"Every site sees the names of all columns that the network reads: {', '.join(plan.column_names)}."
    if plan.reads_concepts:
        yield (
            f"The network reads {len(plan.shared_columns)} columns, which encode {len(plan.concepts)} concepts. To "
            "standardise the values, the sites use the ranges, typical values and spreads in the plan. A missing "
            "value is treated as the typical value."
        )


def _choices(plan: NetworkPlan | PriorPlan) -> Iterator[str]:
    if isinstance(plan, PriorPlan):
        yield from _of_prior(plan)
        return
    yield from _of_columns(plan)
    if plan.private_training is not None:
        yield from _of_private_training(plan, plan.private_training)
    yield f"Every site keeps the model {_KEPT[plan.checkpoint]} (checkpoint: {plan.checkpoint})."
    yield from network_terms(plan)


def network_terms(plan: NetworkPlan) -> Iterator[str]:
    """Yield one sentence about a plan's starting parameters, and one about its frozen layers."""
    if plan.starting_file is not None:
        yield plan.starting_file.words
    frozen = plan.architecture.frozen if isinstance(plan.architecture, NamedTensors) else ()
    if layers := dict.fromkeys(tensor.layer for tensor in frozen):
        yield (
            "These layers of the model are frozen, so this plan does not train them and does not send them: "
            f"{', '.join(layers)}."
        )


def review_page(title: str, sections: Iterable[Section], *, signatures: int) -> str:
    """Return the review as a complete HTML document with lines for signatures."""
    lines = tuple((f"{number}.", "", "", "") for number in range(1, signatures + 1))
    signed = table("Signatures", ("line", "name", "date", "signature"), lines, style="sign")
    parts = []
    for section in sections:
        found, drawn = section.table, [paragraph(sentence) for sentence in section.sentences]
        drawn += [] if found is None else [table(section.heading, found.head, found.rows)]
        parts.append(Part(heading=section.heading, parts=drawn))
    return page(title, (), [*parts, Part(heading="Signatures", parts=[signed])])
