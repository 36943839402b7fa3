"""Defines the sums that sites send under federated-prior, and computes the standardisation and coefficients from them.

In every round the coordinator sends all sums announced so far, as one vector of fixed length: the statistics, then each
Newton round, then the guard. Sums of later rounds are 0. So a restarted program computes the same coefficients again,
and no program has to trust another one's coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt

from protos.numbers.newton_sums import Float32, Float64, NewtonSums, OutOfBound, announced, read_announced
from protos.plan.concepts import Concept, ConceptColumn, columns_of
from protos.plan.networks.network_tensors import Constant, Part, TensorSpec
from protos.plan.patient_privacy import Privacy
from protos.plan.prior_method import FederatedPrior, Number, OneOfClasses, YesOrNo
from protos.plan.private_prior import PrivateSums
from protos.privacy.accounting import PRIVATE_SCALE

PRIOR_MOMENT_SCALE: Final = 1 << 30
GUARD_SCALE: Final = 1 << 20
LARGEST_ROW_LOSS: Final = 64  # nats of one row; a probability is at least 2.2e-16 away from 0 and 1, which is 36
GUARD: Final = "guard"
FEWEST_ROWS: Final = 10  # rows that differ from the most frequent value, so that a sum does not show a single row
_NARROWEST: Final = 1e-4  # the standard deviation of a column, as a part of its concept's range
FEWEST_THERE: Final = 3
_MOMENTS: Final = ("sites", "count", "sum", "squares")


@dataclass(frozen=True)
class Prior:
    """A plan's settings for federated-prior.

    Attributes:
        concepts: the concepts that the method uses, in the plan's order.
        private: the one round of the private form; None if the plan has no key `privacy`.
    """

    method: FederatedPrior
    concepts: tuple[Concept, ...]
    private: PrivateSums | None = None

    @cached_property
    def columns(self) -> tuple[ConceptColumn, ...]:
        """Return the columns of the regression."""
        return columns_of(self.concepts)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each fitted regression."""
        match self.method.outcome:
            case YesOrNo() | Number():
                return ("outcome",)
            case OneOfClasses(classes=classes):
                return tuple(f"outcome={name}" for name in classes)
            case other:
                assert_never(other)

    @property
    def is_number(self) -> bool:
        """Return whether the outcome is a number."""
        return isinstance(self.method.outcome, Number)

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the names of the two columns of each pair."""
        return tuple((one.name, other.name) for one, other in combinations(self.columns, 2))

    @property
    def largest_weight(self) -> float:
        """Return the largest weight that one row can have in the Hessian."""
        return 1.0 if self.is_number else 0.25

    @cached_property
    def statistics_names(self) -> tuple[str, ...]:
        """Return the names of the sums in round 0.

        They are sites and moments for each column, sites for each pair, and outcomes. In the private form these are all
        sums of the regression, which has no other round.
        """
        if self.private is not None:
            return self.private.names
        moments = [f"{kind} {column.name}" for column in self.columns for kind in _MOMENTS]
        pairs = [f"sites {one} x {other}" for one, other in self.pairs]
        outcomes = [f"sum {output}" for output in self.outputs]
        return (*moments, *pairs, "outcomes", *outcomes, *(["squares outcome"] if self.is_number else []))

    @cached_property
    def newton_names(self) -> tuple[str, ...]:
        """Return the names of the sums in one Newton round, in the sequence of `NewtonSums.encoded`."""
        columns = [column.name for column in self.columns]
        return tuple(
            name
            for output in self.outputs
            for name in (
                *(f"hessian {output}: {one} x {other}" for i, one in enumerate(columns) for other in columns[i:]),
                *(f"gradient {output}: {one}" for one in columns),
            )
        )

    @cached_property
    def tensor(self) -> TensorSpec:
        """Return the tensor of sums, four numbers each, that sites receive in each round and with the result."""
        return TensorSpec("announced.sums", (self.words, 4), Part.COMMON, Constant(0.0))

    def recorders(self, everybody: frozenset[str]) -> dict[tuple[str, ...], frozenset[str]]:
        """Return the sites that, by the plan, contribute to the sums of each concept and each pair of concepts."""
        sites = {
            one.name: everybody if one.recorded_by is None else frozenset(one.recorded_by) for one in self.concepts
        }
        alone: dict[tuple[str, ...], frozenset[str]] = {(name,): found for name, found in sites.items()}
        return alone | {(one, other): sites[one] & sites[other] for one, other in combinations(sites, 2)}

    @property
    def newton_rounds(self) -> int:
        """Return the largest number of Newton rounds; 0 with differential privacy, where one round sends all sums."""
        return 0 if self.private is not None else self.method.newton_rounds

    @property
    def words(self) -> int:
        """Return the number of sums in the whole run."""
        if self.private is not None:
            return len(self.statistics_names)
        return len(self.statistics_names) + self.method.newton_rounds * len(self.newton_names) + 1

    def place(self, round_number: int, made: int) -> slice:
        """Return the slice that contains one round's sums in the vector of all sums of the run.

        Args:
            round_number: 0 for the statistics, then the Newton rounds, then the guard.
            made: the number of Newton rounds of the run; the next round is the guard.
        """
        if round_number == 0:
            return slice(0, len(self.statistics_names))
        if round_number > made:
            return slice(self.words - 1, self.words)
        start = len(self.statistics_names) + (round_number - 1) * len(self.newton_names)
        return slice(start, start + len(self.newton_names))

    def rows_needed(self, rounds: int) -> float:
        """Return how many rows the other sites need so that this site takes part in `rounds` Newton rounds."""
        return self.method.rows_per_unknown * rounds * (len(self.columns) + 3) / 2


@lru_cache(maxsize=16)
def prior_of(
    method: FederatedPrior,
    concepts: tuple[Concept, ...],
    privacy: Privacy | None,
    sites: tuple[str, ...],
    colluders: int,
) -> Prior:
    """Return the settings of federated-prior for a plan with these concepts, sites and assumed colluders."""
    chosen = method.concepts
    used = tuple(one for one in concepts if chosen is None or one.name in chosen)
    private = None if privacy is None else PrivateSums(columns_of(used), sites, privacy, colluders, method.largest_rows)
    return Prior(method, used, private)


@dataclass(frozen=True, kw_only=True, eq=False)
class Standard:
    """The standardisation of the common columns, which is the same at every site.

    It follows from the announced statistics.

    Attributes:
        means, deviations: float64 of shape (columns,), of values scaled from the concept's range to 0..1.
        is_used: bool of shape (columns,): enough sites record the column, and it varies.
        rows: training rows with an outcome, of all sites; None in the private form, which does not count them.
        outcome_means: float64 of shape (outputs,): shares of classes, or the number's mean in 0..1.
        outcome_deviation: the deviation of a number, in 0..1; 1 for classes.
    """

    means: Float64 = field(repr=False)
    deviations: Float64 = field(repr=False)
    is_used: npt.NDArray[np.bool_]
    rows: int | None
    outcome_means: Float64 = field(repr=False)
    outcome_deviation: float

    def applied(self, values: Float64) -> Float64:
        """Standardise values in 0..1, float64 of shape (rows, columns). Missing values and unused columns become 0."""
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(np.isnan(values) | ~self.is_used, 0.0, (values - self.means) / self.deviations))


class AnnouncedSums:
    """Computes standardisation, Newton sums and coefficients from the sums that the coordinator announced."""

    def __init__(self, prior: Prior, vector: Float32) -> None:
        """Decode the sums that the coordinator announced. `vector` is float32 of shape (4 * prior.words,).

        Raises:
            OutOfBound: the numbers are not announced sums of this plan.
        """
        if vector.shape != (4 * prior.words,):
            raise OutOfBound("another number of announced sums")
        self._prior, self._words = prior, read_announced(vector)

    @property
    def terms(self) -> Float64:
        """Return the noisy sums of patients' terms under differential privacy, float64 of shape (numbers,)."""
        return np.array(self._words, np.float64) / PRIVATE_SCALE

    @cached_property
    def standard(self) -> Standard:
        """Return the means and deviations for standardising columns. Under differential privacy the plan declares them.

        Raises:
            OutOfBound: honest sites cannot have sent these statistics.
        """
        prior = self._prior
        if prior.private is not None:
            return _declared(prior.private)
        found = dict(zip(prior.statistics_names, self._words, strict=False))
        sites, counts, sums, squares = self.moments(found)
        rows = found["outcomes"]
        if min(found.values()) < 0 or (counts > rows).any() or (squares > sums).any() or rows < 1:
            raise OutOfBound("statistics that no honest sites can have sent")
        means, deviations = _moments(np.maximum(counts, 1.0), sums, squares)
        together = {names: found[f"sites {names[0]} x {names[1]}"] for names in prior.pairs}
        enough = _recorded_by_enough(prior, sites, together) & (deviations > _NARROWEST)
        totals = np.array([found[f"sum {output}"] for output in prior.outputs], np.float64)
        if prior.is_number:
            all_rows, of_squares = np.full(1, float(rows)), np.full(1, float(found["squares outcome"]))
            outcome_means, outcome_deviations = _moments(all_rows, totals, of_squares)
        else:
            outcome_means, outcome_deviations = totals / rows, np.ones(1)
        return Standard(
            means=means,
            deviations=np.where(enough, deviations, 1.0),
            is_used=enough,
            rows=rows,
            outcome_means=outcome_means,
            outcome_deviation=max(float(outcome_deviations[0]), _NARROWEST),
        )

    def without(self, own: Sequence[int]) -> tuple[Float64, Float64, Float64, Float64]:
        """Return the statistics of each column without one site's part: number of sites, counts, means and deviations.

        Args:
            own: the numbers that this site sent in the statistics round.

        Returns:
            Four float64 arrays of shape (columns,), means and deviations of values in 0..1.
        """
        names = self._prior.statistics_names
        rest = {name: word - mine for name, word, mine in zip(names, self._words, own, strict=False)}
        sites, counts, sums, squares = self.moments(rest)
        return (sites, counts, *_moments(np.maximum(counts, 1.0), sums, squares))

    def moments(self, found: Mapping[str, int]) -> tuple[Float64, Float64, Float64, Float64]:
        """Return for each column its number of sites, count, sum and sum of squares; float64 of shape (columns,)."""
        columns = self._prior.columns
        kinds = (np.array([found[f"{kind} {column.name}"] for column in columns], np.float64) for kind in _MOMENTS)
        sites, counts, sums, squares = kinds
        return sites, counts, sums, squares

    def newton(self, round_number: int) -> NewtonSums:
        """Return the sums of the Hessian and the gradient of one Newton round. Rounds count from 1."""
        prior = self._prior
        words = self._words[prior.place(round_number, prior.method.newton_rounds)]
        return NewtonSums.decoded(words, len(prior.columns), len(prior.outputs))

    def coefficients(self, rounds: int) -> tuple[Float64, ...]:
        """Return the coefficients before each of `rounds` Newton rounds, and the coefficients after the last one.

        Returns:
            rounds + 1 arrays of shape (outputs, columns); the first one is 0.

        Raises:
            OutOfBound: honest sites cannot have sent these sums.
        """
        prior = self._prior
        rows = self.standard.rows
        assert rows is not None or not rounds  # the private form has no Newton round
        path = [np.zeros((len(prior.outputs), len(prior.columns)))]
        for number in range(1, rounds + 1):
            sums = self.newton(number)
            sums.require_possible(rows or 0, prior.largest_weight)
            path.append(sums.next_coefficients(path[-1], prior.method.ridge))
        return tuple(path)

    @property
    def guard(self) -> float:
        """Return how much the score of the other sites reduces the log loss, summed over all sites.

        For numbers it is half the decrease of squared errors.
        """
        return self._words[-1] / GUARD_SCALE


def _declared(private: PrivateSums) -> Standard:
    means, deviations = private.standard
    is_used, halves = np.ones(len(means), np.bool_), np.full(1, 0.5)
    return Standard(
        means=means, deviations=deviations, is_used=is_used, rows=None, outcome_means=halves, outcome_deviation=1.0
    )


def place_sums(vector: Float32, place: slice, integers: Sequence[int]) -> None:
    """Write the sums of a round into the vector that sites receive, in place."""
    vector[4 * place.start : 4 * place.stop] = announced(integers)


def _recorded_by_enough(prior: Prior, sites: Float64, together: Mapping[tuple[str, str], int]) -> npt.NDArray[np.bool_]:
    """Return which columns are used. Enough sites must record a column, alone and with each column used so far.

    An entry of H is a sum over the sites that record both columns, so these sites are counted too.
    """
    # One site may prove to have too few different values. Without this allowance a small hospital would remove columns
    # from all others.
    fewest, used = max(FEWEST_THERE, prior.method.fewest_sites - 1), np.zeros(len(prior.columns), dtype=np.bool_)
    for place, column in enumerate(prior.columns):
        before = (prior.columns[other].name for other in np.flatnonzero(used))
        counts = [together[other, column.name] for other in before]
        used[place] = sites[place] >= fewest and all(count >= fewest for count in counts)
    return used


def _moments(counts: Float64, sums: Float64, squares: Float64) -> tuple[Float64, Float64]:
    means = sums / counts / PRIOR_MOMENT_SCALE
    return means, np.sqrt(np.maximum(squares / counts / PRIOR_MOMENT_SCALE - means * means, 0.0))
