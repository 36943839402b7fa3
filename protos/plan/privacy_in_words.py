"""Describes a plan's differential privacy to the people who decide about the plan."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from protos.plan.ingredients import Adaptive, FederatedOnly, InnerProblem, Mixture, PersonalCopy
from protos.plan.network_plan import NetworkPlan
from protos.plan.patient_privacy import Privacy, TrainingPrivacy, has_own_steps
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan


def price_in_words(privacy: Privacy, sums: int = 1) -> str:
    """Describe in one line how much epsilon a run costs each patient, and how large the noise is."""
    deviations = sqrt(sums) / privacy.ratio  # a patient adds a term of norm at most 1
    is_local = isinstance(privacy, TrainingPrivacy) and privacy.noise == "local"
    turn = "step" if is_local else "round"
    local = ". Each site adds this whole noise in each of its steps" if is_local else ""
    rounds = "" if sums == 1 else f" over all {sums} {turn}s"
    return (
        f"epsilon {privacy.epsilon:g}, delta {privacy.delta:g} for each patient{rounds}. The noise in each number is "
        f"{deviations:.3g} times as large as the change that one patient can cause{local}"
    )


def how_private(plan: Plan) -> Iterator[str]:
    """Yield one sentence for each change that differential privacy makes in this plan; none without `privacy`."""
    if plan.privacy is None:
        return
    if isinstance(plan, PriorPlan):
        yield "The sites send one noisy sum, and each site computes the coefficients from the total."
        return
    if not isinstance(plan, NetworkPlan):
        yield "The sites send one noisy sum of counts and moments. The noise hides small counts, so none is left out."
        return
    made, is_local = plan.ingredients, plan.privacy.noise == "local"
    if is_local:
        yield "In each round a site sends the sum of its noisy steps. The shared model moves by the mean of these sums."
    else:
        yield (
            "In each round the sites send one noisy sum of clipped gradients. The shared model makes one step along it."
        )
    if isinstance(made.server_rule, Adaptive):
        yield "The coordinator's rule uses only the noisy sum, so it uses no more privacy budget."
    if made.penalty and is_local:
        yield "The proximal term moves each step towards the received values. It uses no patients' data and no budget."
    elif made.penalty:
        yield "The proximal term is 0 at the start of a round, and a round has one step, so this term changes nothing."
    if has_own_steps(made):
        yield "Private layers take the same steps along their part of each gradient. This part stays at the site."
        yield "The site alone adds the whole noise to gradients of private layers, because no other site adds noise."
    if isinstance(made.procedure, FederatedOnly):
        yield "The private layers keep their first values, so no patient influences the noisy sum through these layers."
    if isinstance(made.procedure, InnerProblem):
        yield "Each step of the inner problem also adds the noise, and the privacy budget covers all of these steps."
    if isinstance(made.procedure, PersonalCopy | Mixture | InnerProblem):
        yield "The personal model is trained on patients without noise. It stays at the site and influences no sum."
    if made.fine_tuning_epochs:
        yield "The fine-tuning after the last round is without noise. The fine-tuned model stays at the site."
