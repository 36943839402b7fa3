"""What the policy still lets out in one run, asked for each contribution; nothing here believes the coordinator.

The whole plan was held against the policy before the site joined (policy.py). Here the same limits are held
against what really is about to leave: the exchange, its contributors, and what has left in this run by the audit
log. So a mistake anywhere before the gate, or an agent that was talked into something, ends here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from protos.plan.exchange import Exchange
from protos.plan.plan import Plan
from protos.wire.messages import Bind
from site_agent.gate.policy import forbidden_scalars, forbidden_tensors
from site_agent.gate.spent import Release, Spent
from site_agent.hospital import Policy


class Allowance:
    """The policy's limits for one run, and how much of them is used."""

    def __init__(
        self,
        policy: Policy,
        plan: Plan,
        *,
        site: str,
        local_time: Callable[[], datetime],
        released: Iterable[Mapping[str, Any]],  # Any: whatever JSON holds
        spent: Spent | None = None,
    ) -> None:
        """`released` are the audit log's records of what left in this run; `local_time` is the hospital's.

        What `spent` has kept of the run counts as well, and it is told what leaves: the log may be put aside.
        """
        self.policy, self._plan, self._site, self._local_time = policy, plan, site, local_time
        self._spent = spent
        self._bytes: dict[int, int] = {} if spent is None else spent.bytes_by_round
        for facts in released:
            self._bytes[facts["round"]] = max(self._bytes.get(facts["round"], 0), facts["bytes"])

    @property
    def trains(self) -> bool:
        """Whether this site's changes are more than zeros."""
        return self._plan.tier_of(self._site) == "training"

    @property
    def is_open(self) -> bool:
        """Whether contributions may leave at this time of day."""
        return self.policy.hours is None or self.policy.hours.is_open(self._local_time())

    def refuse(self, exchange: Exchange, bind: Bind, *, masked: bool) -> str | None:
        """Why a contribution may not leave, in one clause, or None."""
        return next(self._reasons(exchange, bind, masked=masked), None)

    def take(self, exchange: Exchange, bind: Bind, position: bytes) -> None:
        """It leaves; a round counts once, however often its same bytes are sent.

        Raises:
            AuditError: that cannot be recorded; it must not leave.
        """
        self._bytes[bind.round] = max(self._bytes.get(bind.round, 0), exchange.layout.total_bytes)
        if self._spent is not None:
            stage, layers = exchange.stage.name.lower(), exchange.layers.hex()
            release = Release(
                round=bind.round,
                attempt=bind.attempt,
                position=position.hex(),
                stage=stage,
                offered_layers=layers,
                masked=self._plan.secure_aggregation == "required",
            )
            self._spent.take(self._bytes[bind.round], release)

    def _reasons(self, exchange: Exchange, bind: Bind, *, masked: bool) -> Iterator[str]:
        policy, plan = self.policy, self._plan
        if not masked and policy.secure_aggregation == "required":
            yield "the policy requires masks, and this contribution has none"
        training = set(bind.sites) - plan.evaluating_sites
        if self._site not in bind.sites or not set(bind.sites) <= set(plan.site_names):
            yield "its contributors are not sites of the plan with this one among them"
        if len(training) < policy.smallest_sites:
            yield f"{len(training)} sites would be added up, the policy wants {policy.smallest_sites}"
        rounds = self._bytes.keys() | {bind.round}
        if len(rounds) > policy.largest_rounds:
            yield "more rounds than the policy allows"
        total = sum(self._bytes.values()) - self._bytes.get(bind.round, 0) + exchange.layout.total_bytes
        if total > policy.largest_megabytes * 1e6:
            yield f"{total / 1e6:.1f} MB would have left in this run, more than the policy allows"
        if plan.encoding.clipping_range > policy.largest_clipping_range:
            yield "its clipping range is wider than the policy allows"
        yield from forbidden_tensors(policy, (tensor.name for tensor in exchange.up))
        yield from forbidden_scalars(policy, (scalar.name for scalar in exchange.scalars))
        if exchange.up and (policy.tier != "training" and plan.tier_of(self._site) == "training"):
            yield "changes of parameters from a site that does not train by its policy"
