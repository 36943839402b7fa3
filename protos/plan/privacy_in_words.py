"""Describes a plan's differential privacy to the people who decide about the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from protos.plan.averaging_methods import LocalOnly
from protos.plan.ingredients import Adaptive, FederatedOnly, InnerProblem, Mixture, PersonalCopy
from protos.plan.methods import MethodChoice
from protos.plan.patient_privacy import Privacy, has_own_steps, noise_multiplier
from protos.plan.prior_method import FederatedPrior
from protos.plan.private_training import PrivateTraining


def price_in_words(privacy: Privacy, sums: int = 1) -> str:
    """Describe in one line how much epsilon a run costs each patient, and how large the noise is."""
    deviations = noise_multiplier(privacy, sums)
    turn = "step" if privacy.noise == "local" else "round"
    sampled = f". Each takes part in a {turn} with probability {privacy.sampling:g}" if privacy.sampling else ""
    local = ". Each site adds this whole noise in each of its steps" if privacy.noise == "local" else ""
    rounds = "" if sums == 1 else f" over all {sums} {turn}s"
    return (
        f"epsilon {privacy.epsilon:g}, delta {privacy.delta:g} for each patient{rounds}. The noise in each number is "
        f"{deviations:.3g} times as large as the change that one patient can cause{local}{sampled}"
    )


def how_private(method: MethodChoice, privacy: Privacy) -> Iterator[str]:
    """Yield one sentence for each change that differential privacy makes in this method."""
    if isinstance(method, FederatedPrior):
        yield "One noisy sum leaves, and each site computes the coefficients from it."
        return
    if isinstance(method, LocalOnly):  # statistics
        yield "One noisy sum of counts and moments leaves. No small cell is left out, because the noise hides it."
        return
    made, is_local = method.method(), privacy.noise == "local"
    if is_local:
        yield "Each round sends the sum of a site's noisy steps. The shared model moves by their mean over the sites."
    else:
        yield "Each round sends one noisy sum of clipped gradients, and the shared model makes one step along it."
    if isinstance(made.server_rule, Adaptive):
        yield "The coordinator's rule reads the noisy sum alone, so it costs nothing more."
    if made.penalties and is_local:
        yield "The proximal term pulls each step towards the received values. It reads no patient, so it costs nothing."
    elif made.penalties:
        yield "The proximal term is 0 at the start of a round, and a round has one step, so this term changes nothing."
    if has_own_steps(made):
        yield "Private layers take the same steps along their part of each gradient, which stays at the site."
        yield "Its noise is of the site alone: the whole noise, because no other site adds to it."
    if isinstance(made.procedure, FederatedOnly):
        yield "The private layers keep their first values, so the noisy sum depends on no patient through them."
    if isinstance(made.procedure, InnerProblem):
        yield "Each step of the inner problem adds the noise too, and all of these steps are paid for."
    if isinstance(made.procedure, PersonalCopy | Mixture | InnerProblem):
        yield "The personal model reads patients without noise. It stays at the site and shapes no sum."
    if made.fine_tuning_epochs:
        yield "The fine-tuning after the last round is without noise. The fine-tuned model stays at the site."


def bits_in_words(training: PrivateTraining) -> str:
    """Describe in one or two sentences how the number of bits affects accuracy or the bytes sent."""
    if training.promise.bits == 32:
        return (
            f"Each number has 32 bits, with room for {training.patients_that_fit} patients at one site. With more "
            "patients the site may have to clip its sums. That costs accuracy and no privacy."
        )
    narrow = replace(training, promise=training.promise.model_copy(update={"bits": 32}))
    halved = "" if any(narrow.why_not_narrow()) else " With bits: 32 under privacy a round sends half as much."
    return f"Each number has 64 bits.{halved}"
