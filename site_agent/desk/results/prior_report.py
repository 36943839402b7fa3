"""Saves the joined model at the end of a federated-prior study, and reports the gain from the other hospitals.

The report has the same keys as that of run_report.py, so every page that reads a report can read it. The join without
the others' score has the place of the network trained alone.
"""

from __future__ import annotations

import numpy as np

from site_agent.desk.comparison.evaluation import Scores, scores_of
from site_agent.desk.comparison.gain import FEDERATED, SILOED, Baselines
from site_agent.desk.results.joined_model import MODELS, JoinedModel
from site_agent.desk.results.joining_models import FittedJoin, OwnModels, fit_own_models, join_models
from site_agent.desk.results.receiving import coefficient_facts
from site_agent.desk.results.run_report import facts_of, promise_facts, written_report
from site_agent.desk.results.saved_model import SavedModel, save_model
from site_agent.hospital import Hospital
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.disk import Json
from site_agent.trainer.prior.concept_columns import ConceptEncoding
from site_agent.trainer.prior.prior_study import KnownByOthers, PriorStudy
from site_agent.trainer.site_network import Seeds

_WORDS = {"own regression": "your regression", "own forest": "your forest", "others": "the other hospitals' score"}


def make_prior_report(hospital: Hospital, study: PriorStudy, preprocessing: Preprocessing, run: str) -> dict[str, Json]:
    """Join, save, test and report a study's models. Raise OperatorError, or MalformedMessage at impossible sums."""
    known, seeds = study.known_by_others(), Seeds.published(study.plan.seed, study.site)
    join = joined_with(study, known, preprocessing, fit_own_models(study.own, seeds.own("join")))
    concepts = ConceptEncoding.of(tuple(column.name for column in study.prior.columns), known.mapped, known.standard)
    facts = facts_of(hospital, study, run)
    facts["prior"] = prior_facts(study, known, join)
    choice: Json = {"rule": "latest", "round": known.rounds, "loss": None, "validation_losses": []}
    joins = {FEDERATED: join.model, SILOED: join.alone}
    models = {name: _scores(study, known, preprocessing, model) for name, model in joins.items()}
    saved = SavedModel(
        plan=study.plan,
        preprocessing=preprocessing,
        values={},
        joined=join.model,
        concepts=concepts,
        profile=study.own.profile,
    )
    save_model(hospital.state_path, run, saved)
    choices, baselines = {FEDERATED: choice, SILOED: choice}, Baselines(placebo=SILOED)
    return written_report(hospital, run, facts, study.own, preprocessing, seeds, models, choices, baselines)


def joined_with(study: PriorStudy, known: KnownByOthers, preprocessing: Preprocessing, own: OwnModels) -> FittedJoin:
    """Combine the site's own models with the score of the other sites. If this score does not help, its weight is 0."""
    others, classes = known.others, study.own.classes
    outcome = study.prior.outcome
    if outcome.task == "regression":
        assert preprocessing.target_scale is not None
        others = others * (known.standard.outcome_deviation * outcome.width / preprocessing.target_scale.deviation)
    elif outcome.task == "multi-class":
        others = others[[outcome.classes.index(name) for name in classes]]
    return join_models(
        study.own,
        own,
        known.design(study.part("training"), len(study.own.training)).astype(np.float32).astype(np.float64),
        others,
        has_others=known.guard is None or known.guard > 0,
    )


def prior_facts(study: PriorStudy, known: KnownByOthers, join: FittedJoin) -> dict[str, Json]:
    """Return facts for the report about the other sites' score: weight, benefit, coefficients, standard errors."""
    weights = dict(zip(MODELS, join.model.weights.tolist(), strict=True))
    shares = ", ".join(f"{_WORDS[name]} {100 * weight:.0f}%" for name, weight in weights.items())
    promise = study.plan.privacy
    return {
        "privacy": None if promise is None else promise_facts(promise, study.own),
        "sentence": f"The model is a weighted mean of three models: {shares}.",
        "weights": weights,
        "suspicions": [sentence for _, sentence in study.suspicions],
        "guard": known.guard,
        "newton_rounds": known.rounds,
        "coefficients": coefficient_facts(study.prior, known.standard, known.mapped, known.joint, known.errors),
    }


def _scores(study: PriorStudy, known: KnownByOthers, preprocessing: Preprocessing, model: JoinedModel) -> Scores:
    rows = study.own.test
    design = known.design(study.part("test"), len(rows)).astype(np.float32)
    return scores_of(preprocessing, model.outputs(rows.features, design))
