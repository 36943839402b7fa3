"""Runs the method federated-prior at one site: computes the site's sums in each round, and the score at the end.

Everything here stays at the site except the scalars that `train` returns. Coefficients are computed here from the
announced sums, and nobody sends any. The rules:

* announced sums are final: other sums for an earlier round are refused;
* announced sums that no sites can have are refused. What depends on this site's own rows ends in a void (MayNotSend):
  announced sums minus its own are no possible sums of the others; few of its rows would determine H; the others have
  too few patients for the number of announced sums; or a column counts as common that is rare here;
* only training rows take part. For a column with rare values (see concept_columns.py) the site sends 1 as the number of
  voids, and random integers. Then no site uses this column;
* under the plan's key `privacy`, each patient's clipped term depends on this patient alone. So rare values take part,
  and no statistics, no check of possible sums and no guard depend on rows (site_sums.py).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protos.errors import ConfigurationError, OperatorError
from protos.numbers.newton_sums import NewtonSums, OutOfBound
from protos.plan.canonical import pack
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.noisy_results import noisy_fit
from protos.plan.plan import Plan
from protos.plan.prior_plan import Number, OneOfClasses, PriorPlan
from protos.plan.prior_sums import (
    FEWEST_ROWS,
    GUARD_SCALE,
    LARGEST_ROW_LOSS,
    PRIOR_MOMENT_SCALE,
    AnnouncedSums,
    Standard,
)
from protos.plan.private_prior import PrivateSums
from protos.privacy.accounting import PRIVATE_SCALE
from protos.statistics.binned_values import beside_commonest
from protos.wire.messages import MalformedMessage, Stage
from site_agent.hospital import Hospital
from site_agent.trainer.data.contract import Contract, read_contract
from site_agent.trainer.data.dataset import Dataset, SplitRows
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.tables import Table, survey_new_rows
from site_agent.trainer.disk import SavedStudy
from site_agent.trainer.failures import MayNotSend, unfit
from site_agent.trainer.prior.concept_columns import (
    Float64,
    Mapped,
    mapped_columns,
    suspicions,
    values_of,
    without_rare,
)
from site_agent.trainer.prior.site_sums import (
    Concentrated,
    FinalSums,
    Rows,
    clipped_terms,
    own_sums,
    profiled_intercept,
    voids,
)
from site_agent.trainer.requests import Answer, Asked, PlannedStudy, Vector


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class KnownByOthers:
    """The other sites' model, which this site computes from the sums of all sites after the last round.

    `mapped` has this site's own columns. The coefficients `joint` are those of all sites, float64 (outputs, columns),
    with their standard `errors`, and `others` those without this site's own rows. `guard` is by how much the others'
    scores lower the loss, summed over the sites; None in the private form.
    """

    standard: Standard
    mapped: tuple[Mapped, ...]
    joint: Float64
    errors: Float64
    others: Float64
    guard: float | None
    rounds: int

    def design(self, features: Mapping[str, Float64], rows: int) -> Float64:
        """Return the plan's common columns of the given rows, standardised, float64 of shape (rows, columns)."""
        return self.standard.applied(values_of(self.mapped, features, rows))


class PriorStudy(PlannedStudy):
    """Runs a plan with federated-prior at this site. It has the same methods as Study."""

    def __init__(
        self, plan: PriorPlan, dataset: Dataset, table: Table, rows: SplitRows, *, site: str, secret: bytes, fewest: int
    ) -> None:
        """Map the site's columns. A column takes part if values of `fewest` patients differ from its most frequent one.

        Voids are drawn from the site's `secret`.

        Raises:
            ConfigurationError: the contract does not fit the plan's concepts or outcome.
        """
        self.plan, self.own, self.site, self.prior = plan, dataset, site, plan
        self.dataset, self.manifest, self.rows = dataset, manifest_of(plan), 0
        self.data_digest, self.training_rows = dataset.digest, len(dataset.training)
        self.column_count = len(dataset.columns)
        self._exchanges = Exchanges(plan, self.manifest)
        self._secret = hmac.digest(secret, pack("voids of prior", plan.digest, site), "sha256")
        self._table = table
        owners = dataset.training_patients
        self.patients = np.arange(len(rows.training)) if owners is None else owners
        self._rows_of = {"training": rows.training, "validation": rows.validation, "test": rows.test}
        self._features = self.part("training")
        self.mapped = self._recorded = mapped_columns(plan.concepts, table.contract, site)
        # With differential privacy, rare columns stay: otherwise one patient could decide whether a column takes part,
        # and so change all other terms.
        least = 0
        if plan.privacy is None:
            most = np.unique(self.patients, return_counts=True)[1].max(initial=1)  # rows of one patient
            least = max(fewest, FEWEST_ROWS) * int(most)
            self.mapped = without_rare(self._recorded, self._features, least)
        self._rare = {place for place, one in enumerate(self._recorded) if one != self.mapped[place]}
        self._values = values_of(self.mapped, self._features, len(rows.training), is_summed=True)
        assert table.target is not None
        self.outcomes = outcomes_of(plan, table.contract, table.target[rows.training])
        rows_alone = np.arange(len(rows.training))
        self._decided = plan.is_number and 0 < beside_commonest(self.outcomes[:, 0], rows_alone) < least
        self.suspicions: tuple[tuple[str, str], ...] = ()
        self._sums = FinalSums(plan)
        self._final: tuple[AnnouncedSums, int] | None = None
        self.remember: Callable[[], None] = lambda: None  # before the first answer, which values it depends on

    def part(self, name: str) -> dict[str, Float64]:
        """Return the site's own columns of one part of the rows by name: training, validation or test."""
        return {column: values[self._rows_of[name]] for column, values in self._table.features.items()}

    def train(self, asked: Asked, received: Vector) -> Answer:
        """Return a round's values. Raise MalformedMessage at impossible sums, MayNotSend if own rows forbid it."""
        self.exchange(asked)
        found = self._received_sums(asked.round, received)
        if self.prior.private is not None:
            return Answer(scalars=self._terms(self.prior.private))
        if self._decided:
            raise MayNotSend("few of its rows have another outcome than most")
        if asked.stage is Stage.STATISTICS:
            return Answer(scalars=self._statistics())
        path = _path(found, asked.round - 1)
        try:
            self._check_own(found, path)
            if asked.stage is Stage.NEWTON:
                return Answer(scalars=self._own(found, path[-1]).encoded())
            others = self._others(found, path)
            return Answer(scalars=(self._gain_of(found, others),))
        except (OutOfBound, Concentrated) as refused:
            raise MayNotSend(str(refused)) from refused

    def close(self, asked: Asked, received: Vector) -> None:
        """Store the sums that were received last. `asked.round` is the number of finished rounds."""
        self._final = self._received_sums(asked.round, received), asked.round - 2

    def known_by_others(self) -> KnownByOthers:
        """Return the other sites' model from the sums of all rounds. Raise MayNotSend if they are impossible."""
        assert self._final is not None
        found, rounds = self._final
        if self.prior.private is not None:
            return self._known_privately(found, self.prior.private)
        path = _path(found, rounds)
        try:
            self._check_own(found, path)
            others = found.without(self._statistics())
            self.suspicions = tuple(suspicions(self.prior.columns, self._recorded, self._features, others))
            return KnownByOthers(
                standard=found.standard,
                mapped=self.mapped,
                joint=path[-1],
                errors=found.newton(rounds).standard_errors(self.prior.ridge),
                others=self._others(found, path),
                guard=found.guard,
                rounds=rounds,
            )
        except (OutOfBound, Concentrated) as refused:
            raise MayNotSend(str(refused)) from refused

    def saved(self) -> SavedStudy:
        """Return what the next round needs from earlier rounds: digests of the sums that this site received."""
        return SavedStudy(tensors={}, facts={**self._sums.known})

    def restore(self, saved: SavedStudy) -> None:
        self._sums.known = {length: str(digest) for length, digest in saved.facts.items()}

    def _received_sums(self, round_number: int, received: Vector) -> AnnouncedSums:
        """Return the sums received before a round. Raise an error if an earlier sum has changed."""
        whole = self._sums.whole(round_number, received)
        try:
            return AnnouncedSums(self.prior, whole)
        except OutOfBound as refused:
            raise MalformedMessage(str(refused)) from refused

    def _terms(self, private: PrivateSums) -> tuple[int, ...]:
        design = Standard.declared(private.columns).applied(self._values)
        outcomes = self.outcomes[:, 0]
        return clipped_terms(private, self.site, design, outcomes, self.own.training_patients)

    def _known_privately(self, found: AnnouncedSums, private: PrivateSums) -> KnownByOthers:
        """Fit one model from all sites' noisy sums, and one without this site's terms. Both have its share of noise."""
        ridge = self.prior.ridge
        own = np.array(self._terms(private), np.float64) / PRIVATE_SCALE
        joint, errors = noisy_fit(private, found.terms, ridge)
        others, _ = noisy_fit(private, found.terms - own, ridge)
        return KnownByOthers(
            standard=found.standard, mapped=self.mapped, joint=joint, errors=errors, others=others, guard=None, rounds=0
        )

    def _check_own(self, found: AnnouncedSums, path: tuple[Float64, ...]) -> None:
        """Check with this site's own rows that the announced sums contain its own sums, and hide the others' rows.

        Raises:
            OutOfBound: they do not.
            Concentrated: few rows of this site would determine H.
        """
        rows, rounds, used = found.standard.rows, len(path) - 1, found.standard.is_used
        assert rows is not None  # the private form has no Newton rounds
        if any(used[place] for place in self._rare):
            raise OutOfBound("a column counts as common that is rare at this site")
        others = found.standard.patients - len(np.unique(self.patients))
        if others < (needed := self.prior.rows_per_unknown * rounds * (len(self.prior.columns) + 3) / 2):
            raise OutOfBound(f"the other sites have {others} patients, and {rounds} rounds need {needed:g}")
        for number in range(1, rounds + 1):
            own = self._own(found, path[number - 1])
            found.newton(number).without(own).require_possible(rows, self.prior.largest_weight)

    def _own(self, found: AnnouncedSums, coefficients: Float64) -> NewtonSums:
        return own_sums(self._rows(found.standard), coefficients)

    def _rows(self, standard: Standard) -> Rows:
        targets = self.outcomes
        if self.prior.is_number:
            targets = (targets - standard.outcome_means) / standard.outcome_deviation
        design = standard.applied(self._values)
        return Rows(design=design, targets=targets, patients=self.patients, is_number=self.prior.is_number)

    def _others(self, found: AnnouncedSums, path: tuple[Float64, ...]) -> Float64:
        rounds, before = len(path) - 1, path[-2]
        without = found.newton(rounds).without(self._own(found, before))
        return without.next_coefficients(before, self.prior.ridge)

    def _statistics(self) -> tuple[int, ...]:
        numbers: list[int] = []
        limits = [(scalar.lowest, scalar.bound) for scalar in self.manifest.scalars[1:4]]
        for place, values in enumerate(self._values.T):
            present = values[~np.isnan(values)]
            moments = [present.size, _integer(present), _integer(present * present)]
            is_void = place in self._rare
            numbers += [int(is_void), *(voids(self._secret, 0, place, limits) if is_void else moments)]
        outcomes = self.outcomes
        numbers += [len(outcomes), len(np.unique(self.patients))]
        if self.prior.is_number:
            return (*numbers, _integer(outcomes[:, 0]), _integer(outcomes[:, 0] ** 2))
        return (*numbers, *(int(column.sum()) for column in outcomes.T))

    def _gain_of(self, found: AnnouncedSums, others: Float64) -> int:
        """Return how much the other sites' score lowers the loss of an intercept alone, encoded as an integer."""
        rows, total = self._rows(found.standard), 0.0
        for output, slopes in enumerate(others):
            targets = rows.targets[:, output]
            if not len(targets) or targets.min() == targets.max():
                continue
            line = rows.design @ slopes
            total += _loss(np.zeros_like(line), targets, rows.is_number) - _loss(line, targets, rows.is_number)
        largest = LARGEST_ROW_LOSS * len(rows.targets)
        return round(min(max(total, -largest), largest) * GUARD_SCALE)


def _path(found: AnnouncedSums, rounds: int) -> tuple[Float64, ...]:
    """Return the coefficients before and after each round. Raise MalformedMessage if no sites can have these sums."""
    try:
        return found.coefficients(rounds)
    except OutOfBound as refused:
        raise MalformedMessage(str(refused)) from refused


def outcomes_of(prior: PriorPlan, contract: Contract, target: Float64) -> Float64:
    """Return the plan's outcomes, float64 (rows, outputs), in 0..1. Raise ConfigurationError for other ones."""
    outcome, own = prior.outcome, contract.target
    if outcome.task != own.task:
        raise _other_outcome(f"the plan predicts {outcome.task}, and the contract's target {own.name} is {own.task}")
    if isinstance(outcome, Number):
        return np.clip((target - outcome.low) / outcome.width, 0.0, 1.0)[:, None]
    if isinstance(outcome, OneOfClasses):
        if strangers := [name for name in own.classes if name not in outcome.classes]:
            raise _other_outcome(f"{own.name} has the class {strangers[0]}, which the plan does not have")
        places = np.array([outcome.classes.index(name) for name in own.classes])
        return np.asarray(np.eye(len(outcome.classes))[places[target.astype(np.int64)]])
    return target[:, None]


def _integer(values: Float64) -> int:
    # Each value is rounded separately, so that the order of rows changes no bit.
    return int(np.rint(values * PRIOR_MOMENT_SCALE).astype(np.int64).sum())


def _loss(line: Float64, targets: Float64, is_number: bool) -> float:
    fitted = line + profiled_intercept(line, targets, is_number=is_number)
    if is_number:
        return float(((targets - fitted) ** 2).sum() / 2)
    return float((np.logaddexp(0.0, fitted) - targets * fitted).sum())


def _other_outcome(what: str) -> ConfigurationError:
    return unfit(
        what=f"The outcome in this site's contract differs from the outcome that the plan requires: {what}.",
        remedy="Correct the target in the contract, or ask for a new version of the plan.",
    )


def read_without_outcomes(hospital: Hospital) -> Table:
    """Read the table without its outcome. Raise OperatorError if a row does not fit, or there are too few."""
    survey = survey_new_rows(Path(hospital.data.table), read_contract(Path(hospital.data.contract)))
    if survey.mistakes:
        refuse([mistake.line for mistake in survey.mistakes])
    if survey.table.rows < FEWEST_ROWS:
        refuse([f"the table has {survey.table.rows} rows, and at least {FEWEST_ROWS} are needed"])
    return survey.table


def require_receivable(hospital: Hospital, plan: Plan) -> tuple[Mapped, ...]:
    """Return for each concept this site's column. Raise OperatorError if it cannot use the resulting model."""
    assert isinstance(plan, PriorPlan)  # a plan with receivers has federated-prior
    contract = read_without_outcomes(hospital).contract
    outcomes_of(plan, contract, np.empty(0))
    mapped = mapped_columns(plan.concepts, contract, None)
    if all(one is None for one in mapped):
        raise _unusable(
            "No column of this site's contract records a concept of the plan.",
            "Add the key `concept` to columns in the contract.",
        )
    if plan.privacy is not None and hospital.data.prevalence is None:
        what = (
            "This plan does not announce the fraction of patients with the outcome, because the plan has the key "
            "`privacy`."
        )
        raise _unusable(what, "Set `prevalence` under data in hospital.yaml to this fraction.")
    return mapped


def _unusable(what: str, remedy: str) -> OperatorError:
    return ConfigurationError(
        what=what, consequence="Nothing was sent, and this site did not receive a model.", remedy=remedy
    )
