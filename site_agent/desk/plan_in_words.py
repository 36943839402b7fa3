"""Explains a plan to a person who does not program, in the first section of `site-agent review`.

It explains the question, the patients, the data that are sent (with an example), the protection by masking and its
limits, the use of differential privacy, and the worst that others could learn. The later sections are exact. This
section never understates the data that are sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

from protos.plan.manifest import Manifest
from protos.plan.network_plan import NetworkPlan
from protos.plan.patient_privacy import Privacy, TrainingPrivacy
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.plan.privacy_in_words import how_private, price_in_words
from protos.plan.statistics_plan import StatisticsPlan
from protos.plan.weighting import RowWeights
from site_agent.desk.plan_review import Section, counted


def in_words(plan: Plan, manifest: Manifest) -> Section:
    """Return the section of the review that explains a plan in plain words."""
    sentences = (*_asked(plan), *_leaves(plan, manifest), *_masking(plan), *_worst(plan))
    return Section("In short, for the person who decides", tuple(sentences))


def _asked(plan: Plan) -> Iterator[str]:
    names = ", ".join(plan.site_names)
    if plan.question is not None:
        study = "study" if isinstance(plan, StatisticsPlan) else "predict"
        yield f"Question: the hospitals want to {study} this outcome together: {_ended(plan.question.outcome)}"
        yield f"Use: {_ended(plan.question.use)}"
        yield f"Patients: {_ended(plan.question.population)}"
    elif not isinstance(plan, StatisticsPlan):
        yield (
            "Question: the plan does not describe the question. Each hospital's data contract names the outcome that "
            "is predicted."
        )
    if plan.receiving_sites:
        yield (
            f"These hospitals only receive results: {', '.join(sorted(plan.receiving_sites))}. These hospitals send no "
            "number. They receive the same sums as every contributing hospital, and use the sums as a model."
        )
    if isinstance(plan, StatisticsPlan):
        results = counted(len(plan.analyses), "result")
        yield f"Task: {len(plan.site_names)} hospitals ({names}) compute {results} together."
        return
    yield (
        f"Task: {len(plan.site_names)} hospitals ({names}) train a model together, in at most "
        f"{counted(plan.rounds, 'round')}. Each hospital uses only the data of its own "
        "patients, on its own computer."
    )


def _ended(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _leaves(plan: Plan, manifest: Manifest) -> Iterator[str]:
    yield "Patients of this hospital: all patients in the table that the file hospital.yaml names."
    yield "What stays at this hospital: every row, every name, every date and every identifier of a patient."
    if plan.private_training is not None:
        yield (
            f"What is sent: in each round of training, {manifest.parameters} sums over this hospital's patients. These "
            "sums show how the patients would change the shared model. The influence of each patient on a sum is "
            "limited, and random noise is added."
        )
    elif manifest.parameters:
        yield (
            f"What is sent: the shared model consists of {manifest.parameters} numbers. In each round of training, "
            "this hospital sends how much each of these numbers changed at this hospital. An example: the weight "
            "between the third input and the first unit rose by 0.013. Such a number is computed from all training "
            "rows together, and does not name a patient."
        )
    if manifest.scalars and plan.private_training is None:
        count = len(manifest.scalars)
        where = "section Analyses" if isinstance(plan, StatisticsPlan) else "table Other numbers"
        numbers = "1 count or measurement" if count == 1 else f"{count} counts and measurements"
        yield (
            f"{'What else is sent' if manifest.parameters else 'What is sent'}: "
            f"{numbers} of all rows together. "
            f"{_example(plan)} The {where} below lists these numbers."
        )
    if not manifest.parameters and not manifest.scalars:
        yield "What is sent: only the fact that this hospital takes part in the study."
    if plan.shared_columns:
        yield (
            "The plan lists the names of columns of the table. Every hospital and the coordinator can read these names."
        )


def _example(plan: Plan) -> str:
    if isinstance(plan, StatisticsPlan):
        noise = "Random noise of several rows is added."
        how = f"A code with fewer than {plan.smallest_cell} rows is not counted." if plan.privacy is None else noise
        return f"An example, which is not from this table: how many rows have the code F in a column sex. {how}"
    if isinstance(plan, PriorPlan):
        return "An example: the sum of the ages of all patients here, or how strongly the outcome depends on age here."
    return "An example: the mean error of the model on rows that were not used for training."


def _masking(plan: Plan) -> Iterator[str]:
    if not plan.masking.required:
        yield "Masking is off. Therefore the coordinator can read the numbers of this hospital."
        return
    yield (
        "Masking hides this hospital's numbers. The coordinator and all hospitals read only the sum over the "
        f"{len(plan.site_names)} hospitals, and the result. Masking fails if more than {plan.assumed_colluders} of "
        "these hospitals work together with the coordinator."
    )


def _worst(plan: Plan) -> Iterator[str]:
    if plan.privacy is not None:
        yield from _promise(plan.privacy, plan.private_sums)
        yield from how_private(plan)
        return
    yield "Differential privacy is not used. Therefore no random noise is added to the numbers that are sent."
    if not plan.masking.required:
        yield (
            "At worst: the coordinator can compute facts about single patients from these numbers. This is easiest if "
            "a round uses few rows."
        )
        return
    yield (
        "At worst: a person who already has a patient's values could use the result to estimate whether this patient "
        "is in one of the tables. The result does not show at which hospital the patient is."
    )
    yield "At worst: the other hospitals could break the agreement, work together and compute this hospital's numbers."
    if isinstance(plan.site_weights, RowWeights) and plan.site_weights.exact:
        yield (
            "At worst: a person who compares two studies can compute how the number of training rows of all "
            "hospitals together changed. This hospital's own count changes by smallest_cell or more, or not at all."
        )
    if isinstance(plan, NetworkPlan) and plan.starting_file is not None:
        yield ("At worst: the author of the starting file chose values that make a sum reveal rows of single patients.")


def _promise(privacy: Privacy, sums: int) -> Iterator[str]:
    yield f"Differential privacy: {price_in_words(privacy, sums)}."
    if isinstance(privacy, TrainingPrivacy) and privacy.noise == "local":
        yield (
            "At each hospital the program that trains (the trainer) adds the noise. The program that sends (the gate) "
            "cannot check whether the noise was added."
        )
    else:
        yield "Each hospital adds its share of the random noise to its numbers before they are masked."
    yield (
        "At worst: when one patient's rows are added or removed, the probability of a result becomes at most "
        f"{exp(privacy.epsilon):.3g} times as large or as small, plus or minus {privacy.delta:g}."
    )
    yield (
        "At worst: other people may still learn facts that are true for many patients, or for this hospital as a "
        "whole. If the contract names no column that identifies patients, each row is treated as one patient."
    )
