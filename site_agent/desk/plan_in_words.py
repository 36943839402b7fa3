"""Explains a plan to a person who does not program, in the first section of `site-agent review`.

It explains the question, the patients, the data that are sent (with an example), the protection by masking and its
limits, the use of differential privacy, and the worst that others could learn. The later sections are exact. This
section never understates the data that are sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

from protos.plan.manifest import Manifest
from protos.plan.patient_privacy import Privacy
from protos.plan.plan import Plan
from protos.plan.privacy_in_words import how_private, price_in_words
from protos.plan.weighting import RowWeights
from site_agent.desk.plan_review import Section, counted


def in_words(plan: Plan, manifest: Manifest, rows: int | None) -> Section:
    """Return the section of the review that explains a plan in plain words.

    Args:
        rows: training rows of this hospital's table; None if they were not counted.
    """
    sentences = (*_asked(plan), *_patients(plan, rows), *_leaves(plan, manifest), *_masking(plan), *_worst(plan))
    return Section("In short, for the person who decides", tuple(sentences))


def _asked(plan: Plan) -> Iterator[str]:
    names = ", ".join(plan.site_names)
    if plan.question is not None:
        yield f"Question: hospitals want to predict this together: {_ended(plan.question.outcome)}"
        yield f"Use: {_ended(plan.question.use)}"
    elif plan.statistics is None:
        yield "Question: the plan does not describe it. Each hospital's data contract names its outcome."
    if plan.receiving_sites:
        yield (
            f"These hospitals only receive: {', '.join(sorted(plan.receiving_sites))}. They send no number. They "
            "receive the same sums as every contributing hospital, and use them as a model."
        )
    if plan.statistics is not None:
        yield f"Task: {len(plan.site_names)} hospitals ({names}) count their patients once. Nothing is trained."
        return
    yield (
        f"Task: {len(plan.site_names)} hospitals ({names}) train together, in at most "
        f"{counted(len(plan.alternatives) * plan.rounds, 'round')}. Each hospital computes on its own patients, on its "
        "own computer."
    )
    if plan.sweep is not None:
        yield (
            f"The plan tries {len(plan.alternatives)} alternatives, each in a separate run. One approval covers all "
            "of them."
        )


def _patients(plan: Plan, rows: int | None) -> Iterator[str]:
    if plan.question is not None:
        yield f"Patients: {_ended(plan.question.population)}"
    counted = "" if rows is None else f" {rows} rows are used for training. Other rows are kept for tests."
    yield f"Patients of this hospital: all in the table that hospital.yaml names.{counted}"


def _ended(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _leaves(plan: Plan, manifest: Manifest) -> Iterator[str]:
    yield "What stays: every row, every name, every date and every identifier of a patient."
    if plan.private_training is not None:
        yield (
            f"What is sent: in each round of training, {manifest.parameters} sums over this hospital's patients. They "
            "show how these patients would change the shared model. The share of each patient in a sum is limited, and "
            "noise is added."
        )
    elif manifest.parameters:
        yield (
            f"What is sent: the shared model consists of {manifest.parameters} numbers. In each round of training, "
            f"this "
            "hospital sends how much each of them changed here. An example: the weight between the third input and the "
            "first unit rose by 0.013. Such a number is computed from all rows together and names no patient."
        )
    if manifest.scalars and plan.private_training is None:
        count = len(manifest.scalars)
        numbers = "1 count or measurement" if count == 1 else f"{count} counts and measurements"
        yield (
            f"{'What else is sent' if manifest.parameters else 'What is sent'}: "
            f"{numbers} of all rows together. "
            f"{_example(plan)} The table Other numbers below lists each."
        )
    if not manifest.parameters and not manifest.scalars:
        yield "What is sent: only the fact that this hospital takes part."
    if plan.shared_columns:
        yield "The plan names the columns of the table. Every hospital and the coordinator read these names."


def _example(plan: Plan) -> str:
    if plan.privacy is not None and plan.statistics is not None:
        return "An example: 37 rows have the code F in the column sex, plus noise of several rows."
    if plan.statistics is not None:
        return (
            f"An example: 37 rows have the code F in the column sex. A count below {plan.statistics.smallest_cell} "
            f"rows is not sent."
        )
    if plan.prior is not None:
        return "An example: the sum of the ages of all rows here, or how strongly the outcome depends on age here."
    return "An example: the mean error of the model on the rows that are kept for tests."


def _masking(plan: Plan) -> Iterator[str]:
    if plan.secure_aggregation == "off":
        yield "Masking is off. The coordinator reads this hospital's own numbers."
        return
    if plan.two_sites is not None:
        yield "Masking hides this hospital's numbers from the coordinator. The other hospital can compute them."
        return
    yield (
        f"Masking hides this hospital's numbers. The coordinator reads only the sum over at least {plan.quorum} "
        f"hospitals. Masking fails if more than {plan.assumed_colluders} of them work together with the coordinator."
    )
    yield "Masking does not protect the sum itself. The coordinator and all these hospitals see it and the result."


def _worst(plan: Plan) -> Iterator[str]:
    if plan.privacy is not None:
        yield from _promise(plan.privacy, plan.private_sums)
        yield from how_private(plan.method, plan.privacy)
        return
    yield "Differential privacy is not used. No random noise is added to the sent numbers."
    if plan.secure_aggregation == "off" or plan.two_sites is not None:
        whose = "the coordinator" if plan.two_sites is None else "the other hospital"
        yield (
            f"At worst: {whose} can compute properties of single patients from these numbers. This is easiest if few "
            "rows take part in a round."
        )
        return
    yield (
        "At worst: a person who already has a patient's values could use the result to estimate whether this patient "
        "is in one of the tables. The result does not show at which hospital."
    )
    yield "At worst: hospitals that work together against the agreement could compute this hospital's numbers."
    if isinstance(plan.weighting, RowWeights) and plan.weighting.exact:
        yield (
            "At worst: a person who compares two studies can compute how the number of training rows of all "
            "hospitals together changed. This hospital's own count changes by smallest_cell or more, or not at all."
        )
    if plan.starting_file is not None:
        yield ("At worst: the author of the starting file chose values that make a sum reveal rows of single patients.")
    if plan.on_lost_site == "continue":
        yield (
            "At worst: a coordinator that falsely reports lost hospitals could compute the numbers of a few "
            "hospitals. This "
            "hospital could be one of them. The setting lost_site_budget in hospital.yaml limits how often this is "
            "possible."
        )


def _promise(privacy: Privacy, sums: int) -> Iterator[str]:
    yield f"Differential privacy: {price_in_words(privacy, sums)}."
    if privacy.noise == "local":
        yield "Each hospital's trainer adds the noise. The gate cannot check whether the noise was added."
    else:
        yield "Each hospital adds its share of the noise before masking."
    yield (
        "At worst: when one patient's rows are added or removed, the probability of a result becomes at most "
        f"{exp(privacy.epsilon):.3g} times as large or as small, plus or minus {privacy.delta:g}."
    )
    yield (
        "At worst: others may still learn facts that are true for many patients, or for this hospital as a whole. If "
        "the contract has no patient column, each row is treated as one patient."
    )
