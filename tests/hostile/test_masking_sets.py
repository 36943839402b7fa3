"""The cost of a lost site in honest runs, and why two quorums always share an honest site."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos.masking.masking_refusals import Reason
from tests.hostile.masking_coordinator import agree, all_refuse, collect, enter, restart
from tests.hostile.masking_federation import masked_plan, sites_of
from tests.rehearsal.made_up_time import play


def test_a_site_left_out_is_paid_for_once_and_over_restarts(tmp_path: Path) -> None:
    """A budget of one lets a run go on without a site that took part in one round, and not without a second site."""
    plan = masked_plan("abcde", rounds=4, on_lost_site="continue", assumed_colluders=0)

    async def scene() -> None:
        sites = sites_of(plan, tmp_path, {"lost_site_budget": 1})
        await enter(sites)
        await agree(sites)
        assert all(await collect(sites, 0, 0, "abcde"))
        assert all(await collect(sites, 1, 0, "abcd"))
        await restart(sites[:4])
        await agree(sites[:4], key_session=2)
        assert all(await collect(sites, 2, 0, "abcd"))

        assert await collect(sites, 3, 0, "abc") == [[], [], []]
        assert all_refuse(sites[:3], Reason.BUDGET_SPENT, chunks=3)

    play(scene())


def test_a_plan_on_disjoint_sets_has_no_second_quorum() -> None:
    """For every number of sites and colluders two quorums share more sites than there are colluders."""
    for count in range(3, 101):
        for colluders in range(count - 1):
            names = [f"s{number}" for number in range(count)]
            quorum = max(3, colluders + 2, (count + colluders) // 2 + 1)
            if quorum > count:
                continue
            assert 2 * quorum - count > colluders
            if count <= 12:
                assert masked_plan(names, assumed_colluders=colluders).quorum == quorum
                with pytest.raises(ValueError, match="quorum must be at least"):
                    masked_plan(names, assumed_colluders=colluders, quorum=quorum - 1)
