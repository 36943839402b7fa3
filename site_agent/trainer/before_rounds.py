"""Loads what a run needs before its first round: the table, the network, the site's random draws.

Libraries are loaded inside the functions, so an idle trainer uses no memory for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from host.starting_files import starting_values
from protos.errors import OperatorError
from protos.plan.concepts import columns_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.prior_plan import Number, PriorPlan
from protos.plan.statistics_plan import StatisticsPlan
from protos.plan.weighting import RowWeights
from site_agent.hospital import Hospital
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.disk import recording, site_secret
from site_agent.trainer.failures import TooFewRows

if TYPE_CHECKING:
    from protos.plan.analyses import Frame
    from site_agent.trainer.answered_values import Values
    from site_agent.trainer.data.dataset import SplitRows
    from site_agent.trainer.data.preprocessing import Preprocessing
    from site_agent.trainer.data.tables import Table
    from site_agent.trainer.prior.prior_study import PriorStudy
    from site_agent.trainer.statistics.statistics_study import StatisticsStudy
    from site_agent.trainer.study import Study


def check_table(hospital: Hospital) -> None:
    """Check the device and the table in the same way as training. Raise OperatorError if it can't use one of them."""
    if hospital.training.device == "cuda":
        prepare_arithmetic(hospital.training.threads, hospital.training.device)
    if hospital.policy.tier == "receiving":
        from site_agent.trainer.prior.prior_study import read_without_outcomes

        read_without_outcomes(hospital)
    else:
        from site_agent.trainer.data.dataset import prepare_rows
        from site_agent.trainer.data.run_table import table_for_run

        table, rows = table_for_run(hospital, logs=True)
        if rows is not None:
            prepare_rows(table, rows)


def begin_study(hospital: Hospital, plan: NetworkPlan, state: Path) -> tuple[Study, Preprocessing]:
    """Load the table and the network for a study. `state` has the site's secret."""
    prepare_arithmetic(hospital.training.threads, hospital.training.device)

    from site_agent.trainer.data.dataset import prepare_rows
    from site_agent.trainer.prior.concept_columns import concept_inputs
    from site_agent.trainer.site_network import Seeds
    from site_agent.trainer.study import Study

    table, rows = _rows_of(hospital, plan)
    dataset, preprocessing = prepare_rows(table, rows)
    inputs = concept_inputs(plan, hospital.site, table, rows, dataset) if plan.reads_concepts else None
    user_module = hospital.training.user_module
    if hospital.training.draws == "published":
        seeds = Seeds.published(plan.seed, hospital.site)
    else:
        seeds = Seeds.secret(site_secret(state / "models"), plan, hospital.site)
    study = Study(
        plan,
        dataset,
        seeds=seeds,
        user_module=Path(user_module) if user_module else None,
        inputs=inputs,
        starts=starting_values(Path(hospital.starting_files), plan),
        device=hospital.training.device,
    )
    if isinstance(plan.weighting, RowWeights):
        most = max(Counter(table.patients or ("",)).values())  # rows of one patient
        _count_rows(study, state / "models", most * hospital.policy.smallest_cell)
    study.remember = partial(_remember_network, hospital, plan, table, rows)
    return study, preprocessing


def require_fit(hospital: Hospital, plan: NetworkPlan) -> None:
    """Raise the OperatorError with which a run of a plan would end, because of this site's table or settings.

    Nothing is trained or stored, and the hospital's own network is not run: a person at any account may ask.
    """
    from site_agent.trainer.data.dataset import prepare_rows
    from site_agent.trainer.fitting import check_fit, require_module
    from site_agent.trainer.prior.concept_columns import concept_inputs

    table, rows = _rows_of(hospital, plan)
    dataset, _ = prepare_rows(table, rows)
    if plan.reads_concepts:
        concept_inputs(plan, hospital.site, table, rows, dataset)
    check_fit(plan, dataset, hospital.site)
    require_module(plan, has_module=hospital.training.user_module is not None)
    check_rows(hospital, plan, len(dataset.training), len(dataset.training))


def check_rows(hospital: Hospital, plan: Plan, rows: int, counted: int) -> None:
    """Raise TooFewRows if this site has fewer training rows than plan and policy require. `counted` is its weight."""
    weighting, fewest = plan.site_weights, hospital.policy.smallest_training_rows
    is_too_small = rows < fewest
    if isinstance(weighting, RowWeights):
        fewest = max(fewest, weighting.fewest_rows)
        # The count of an earlier study may be smaller than the present number of rows. The gate refuses it too.
        is_too_small = rows < fewest or counted < weighting.counted(fewest)
    if plan.tier_of(hospital.site) == "training" and is_too_small:
        raise TooFewRows(fewest)


def _remember_network(hospital: Hospital, plan: NetworkPlan, table: Table, rows: SplitRows) -> None:
    from site_agent.trainer import answered_values
    from site_agent.trainer.prior.concept_columns import mapped_columns

    used = answered_values.features_of(table, rows.training) | answered_values.outcomes_of(table, rows.training)
    if plan.reads_concepts:
        mapped = mapped_columns(plan.concepts, table.contract, hospital.site)
        used |= answered_values.concepts_of(columns_of(plan.concepts), mapped, table, rows.training)
    folder, cell = hospital.state_path / "models", hospital.policy.smallest_cell
    patients_of = partial(answered_values.patients_of, table)
    answered_values.remember(folder, plan.run_name, used, cell, patients_of(rows.training))
    if plan.has_validation_round:
        measured = answered_values.features_of(table, rows.validation)
        measured |= answered_values.outcomes_of(table, rows.validation)
        others = {f"validation {name}": values for name, values in measured.items()}
        answered_values.remember(folder, plan.run_name, others, cell, patients_of(rows.validation))


def _count_rows(study: Study, folder: Path, gap: int) -> None:
    """Set the row counts that determine this site's weights, so that they are consistent with earlier studies."""
    training = released_count(folder, len(study.own.training), gap) if study.rows else len(study.own.training)
    validation = released_count(folder, len(study.dataset.validation), gap, "validation")
    study.count_rows_as(training, validation)


def begin_prior(hospital: Hospital, plan: PriorPlan) -> tuple[PriorStudy, Preprocessing]:
    """Load the libraries and the table for a study with federated-prior."""
    prepare_arithmetic(hospital.training.threads)

    from site_agent.trainer.data.dataset import prepare_rows
    from site_agent.trainer.prior.prior_study import PriorStudy

    table, rows = _rows_of(hospital, plan)
    dataset, preprocessing = prepare_rows(table, rows)
    secret, fewest = site_secret(hospital.state_path / "models"), hospital.policy.smallest_cell
    study = PriorStudy(plan, dataset, table, rows, site=hospital.site, secret=secret, fewest=fewest)
    study.remember = partial(_remember_prior, hospital, study, table, rows)
    return study, preprocessing


def _remember_prior(hospital: Hospital, study: PriorStudy, table: Table, rows: SplitRows) -> None:
    from site_agent.trainer.answered_values import Values, concepts_of, outcomes_of, patients_of, remember, rows_of

    plan = study.prior
    used = concepts_of(plan.columns, study.mapped, table, rows.training)
    used |= outcomes_of(table, rows.training, plan.outcome if isinstance(plan.outcome, Number) else None)
    used |= {f"outcome {place}, mapped": Values(values=own) for place, own in enumerate(study.outcomes.T)}
    folder, patients = hospital.state_path / "models", patients_of(table, rows.training)
    used |= rows_of(study.patients)
    remember(folder, plan.run_name, used, hospital.policy.smallest_cell, patients)


def begin_statistics(hospital: Hospital, plan: StatisticsPlan, state: Path) -> StatisticsStudy:
    """Load the table for statistics, without libraries for training. Raise OperatorError if it does not fit."""
    from site_agent.trainer.answered_values import remember
    from site_agent.trainer.data.run_table import table_digest, table_for_run
    from site_agent.trainer.statistics.concept_frame import doubts_of, unmapped_in_words
    from site_agent.trainer.statistics.statistics_study import StatisticsStudy

    table, _ = table_for_run(hospital)
    frame, remembered = statistics_rows(hospital, plan, table)
    secret = site_secret(state / "models")
    study = StatisticsStudy(plan, frame, site=hospital.site, secret=secret, digest=table_digest(table))
    doubts = doubts_of(plan, remembered[0], frame, table.contract)
    study.cut = (*doubts, *unmapped_in_words(plan, table, hospital.site))
    if plan.privacy is None:
        study.remember = partial(remember, state / "models", plan.run_name, *remembered)
    return study


def statistics_rows(
    hospital: Hospital, plan: StatisticsPlan, table: Table
) -> tuple[Frame, tuple[dict[str, Values], int, list[str] | None]]:
    """Return the rows of a table for a plan, and what answered_values.py compares: values, smallest cell, patients."""
    from site_agent.trainer.statistics.concept_frame import concept_frame, used_values

    cell = max(plan.smallest_cell, hospital.policy.smallest_cell)
    frame = concept_frame(plan, table, hospital.site, cell)
    patients = None if table.patients is None else [*table.patients, *(f"left {one}" for one in range(frame.left_out))]
    return frame, (used_values(plan, table, frame), cell, patients)


def faults(hospital: Hospital, plan: StatisticsPlan, table: Table) -> Iterator[OperatorError]:
    """Yield why a run should not use a table: codes that the plan lacks, and that nobody checked it."""
    from site_agent.trainer.data.run_table import unchecked
    from site_agent.trainer.prior.concept_columns import wrong_mapping
    from site_agent.trainer.statistics.concept_frame import unmapped_in_words

    if unmapped := " ".join(unmapped_in_words(plan, table, hospital.site)):
        yield wrong_mapping(unmapped)
    if error := unchecked(hospital, table):
        yield error


def _rows_of(hospital: Hospital, plan: Plan) -> tuple[Table, SplitRows]:
    """Return the hospital's table and its split into training, validation and test rows.

    With differential privacy, a patient's part does not depend on other patients.
    """
    from site_agent.trainer.data.dataset import steady_split
    from site_agent.trainer.data.run_table import table_for_run

    table, rows = table_for_run(hospital)
    assert rows is not None  # the gate refuses such a plan at a site that only counts
    return table, rows if plan.privacy is None else steady_split(table, hospital.data.split)


def released_count(folder: Path, rows: int, gap: int, kind: str = "training") -> int:
    """Return the row count that this site sends if it has `rows` rows. The count is stored on disk first.

    The records in `folder` have the counts of training and of validation rows that this site used, the newest last.
    `gap` is the least difference between two different counts, the rows of `smallest_cell` patients (docs/privacy.md,
    "Integers"); it never falls. Raises StoreError.
    """
    from site_agent.trainer.answered_values import extend

    with recording(folder) as store:
        read = "SELECT rows FROM counts WHERE kind = ? ORDER BY place"
        used = [count for (count,) in store.read(read, kind)]
        gap = max([gap, *(used_gap for (used_gap,) in store.read(read, f"gap of {kind}"))])
        near = [count for count in used if abs(count - rows) < gap]
        # The newest count is preferred: if rows come and go around a limit, only the first change is visible.
        chosen = rows if not near else used[-1] if used[-1] in near else min(near, key=lambda count: abs(count - rows))
        if not used or used[-1] != chosen:
            store.write("DELETE FROM counts WHERE kind = ? AND rows = ?", kind, chosen)
            for name, count in ((kind, chosen), (f"gap of {kind}", gap)):
                store.write("INSERT INTO counts (kind, rows) VALUES (?, ?)", name, count)
            extend(store, site_secret(folder), "", {kind: str(chosen)})
    return chosen
