"""The page by which a person approves a plan: everything that may leave is on it, in words."""

from __future__ import annotations

from typing import Any

import pytest

from protos.manifest import Occasion, manifest_of
from protos.plan import Plan
from protos.volume import most_bytes
from site_agent.review import review_lines
from tests.protos.examples import METHODS, plan_of_method

ROWS: dict[str, Any] = {"weighting": {"name": "rows", "largest_rows": 64}}
MEASURING: dict[str, Any] = {"checkpoint": "global", "gain": "sums"}


def page(plan: Plan) -> str:
    """The whole page."""
    return "\n".join(review_lines(plan, manifest_of(plan)))


def widest(method: dict[str, Any]) -> Plan:
    """A plan of the method in which as much travels as it can bear."""
    keys = {"gain": "sums"} if method["name"] == "local" else MEASURING
    return plan_of_method(method, **keys | ({} if method["name"] == "scaffold" else ROWS))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])
def test_everything_that_may_leave_is_named(method: dict[str, Any]) -> None:
    """Each tensor with its shape, each number with a meaning and a bound, the bytes of the whole run."""
    plan = widest(method)
    manifest, text = manifest_of(plan), page(widest(method))

    for tensor in manifest.tensors:
        assert f"  {tensor.name} {'x'.join(map(str, tensor.shape))}\n" in text
    for scalar in manifest.scalars:
        (line,) = [line for line in text.splitlines() if line.startswith(f"    {scalar.name}: ")]
        assert line.endswith(f"; at most {scalar.bound / scalar.scale:g}")
        assert len(line) > len(scalar.name) + 30
    assert f"{most_bytes(plan, manifest)} bytes in all" in text
    assert method["name"] in text
    assert plan.digest.hex() in text


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])
def test_numbers_stand_under_the_rounds_in_which_they_travel(method: dict[str, Any]) -> None:
    """Each kind of round is said once, with how often it comes, before its numbers."""
    plan = widest(method)
    lines = page(plan).splitlines()

    for scalar in manifest_of(plan).scalars:
        place = next(index for index, line in enumerate(lines) if line.startswith(f"    {scalar.name}: "))
        heading = next(line for line in reversed(lines[:place]) if line.startswith("  in "))
        assert heading.startswith(f"  in {scalar.occasion} (")
    assert len([line for line in lines if line.startswith("  in ")]) == len(
        {scalar.occasion for scalar in manifest_of(plan).scalars}
    )


def test_a_page_reads_like_this() -> None:
    """A whole page, word by word."""
    plan = plan_of_method(
        {"name": "player-fl"},
        architecture={"name": "dense", "hidden": [2, 2]},
        early_stopping={"signal": "global", "patience": 3},
        on_lost_site="continue",
        **ROWS | MEASURING,
    )
    sites = "\n".join(f"  {site.name}  identity {site.identity}" for site in plan.sites)

    assert (
        page(plan)
        == f"""\
Study heart, version 1, plan digest {plan.digest.hex()}
Method player-fl; masking required; quorum 3
Sites whose contributions are added up:
{sites}
The coordinator sees sums over at least 3 sites; this holds while at most 1 of the sites work together with it.
When a site is lost in the middle of a round, the others train the round again without it, as often as this site's \
lost_site_budget allows: a coordinator that lies about a loss could then estimate a change.
11 rounds at most:
  1 probe: one epoch is trained, measured and undone; only the numbers below leave
  8 of training: changes leave
  1 of validation: the last shared model is measured; only the numbers below leave
  1 report: every site tests its chosen model; only the numbers below leave
Each round of training sends the change of 4 tensors, or of the first of their layers, as the probe decides:
  input.layer1.weight 2x3
  input.layer1.bias 2
  body.layer2.weight 2x2
  body.layer2.bias 2
A change beyond +-8 is clipped; where more than 0.10% of the values are, nothing is sent.
Numbers that leave beside the changes, seen only as sums over the sites:
  in {Occasion.TRAINING} (8 times):
    rows: its training rows, rounded to two significant bits; at most 64
  in {Occasion.PROBE} (1 time):
    sensitivity 1: how much the loss depends on the layers up to this one, times its weight; at most 8
    sensitivity 2: how much the loss depends on the layers up to this one, times its weight; at most 8
    sensitivity 3: how much the loss depends on the layers up to this one, times its weight; at most 8
  in {Occasion.MEASURED} (2 times):
    validation weight: its validation rows, rounded as the rows are; 1 where all sites count the same; at most 64
    validation loss: the loss of the received model on its validation rows, times its weight; at most 1024
    still improving: 1 while its own validation loss has fallen lately, else 0; at most 1
  in {Occasion.REPORT} (1 time):
    sites with a metric: 1 if the metric is defined on its test rows, else 0; at most 1
    metric: the AUROC of its chosen model on its own test rows; at most 1
    sites that gained: 1 if its chosen model has a larger AUROC than the network trained alone, else 0; at most 1
Every site sees the names of all encoded columns: age, chol, cp
Checkpoint global: every site keeps the model of the round with the lowest summed validation loss.
Training ends early when the validation loss over all sites has not fallen for 3 measurements.
What the sites gain by joining is summed over all of them; this site's own report stays here.
64 bytes a training round for the changes, {most_bytes(plan, manifest_of(plan))} bytes in all at most; nothing else \
leaves."""
    )


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"secure_aggregation": "off"}, "Without masking the coordinator sees what each site sends, not only sums."),
        ({"secure_aggregation": "off", "gain": "sums"}, "Numbers that leave beside the changes:"),
        ({}, "When a site is lost in the middle of a round, the others wait for it."),
        ({"checkpoint": "latest"}, "Checkpoint latest: every site keeps the model of the last round."),
        ({}, "Checkpoint local: every site keeps the model that is best on its own validation rows."),
        ({"early_stopping": {"signal": "local", "patience": 2}}, "when no site's own validation loss has fallen for 2"),
        ({}, "What this site gains by joining stays in its own report."),
        ({}, "No other number leaves."),
        ({"encoding": {"clipping_range": 0.5}}, "A change beyond +-0.5 is clipped"),
    ],
)
def test_what_a_plan_decides_is_said_in_words(keys: dict[str, Any], said: str) -> None:
    """Masking, losses, checkpoint, early end and gain each have their sentence."""
    assert said in page(plan_of_method({"name": "global-layers"}, **keys))


def test_two_sites_are_told_that_each_sees_the_other() -> None:
    """Where only two sites add up, the page does not speak of sums alone."""
    sites = plan_of_method({"name": "global-layers"}).model_dump(mode="json")["sites"][:2]
    plan = plan_of_method({"name": "global-layers"}, sites=sites, quorum=2, two_sites="each-sees-the-other")

    assert "each of the two sites can compute the other's part" in page(plan)


def test_a_plan_that_shares_nothing_says_so() -> None:
    """Local training names no tensor."""
    assert "No parameter is shared, so no change of any tensor leaves." in page(plan_of_method({"name": "local"}))


def test_layers_that_wait_are_announced() -> None:
    """FedLAMA's page says which layers travel less often."""
    assert "only every 2 rounds" in page(plan_of_method({"name": "fedlama"}))


def test_a_plan_with_an_expert_says_that_it_stays() -> None:
    """The page has a sentence on it where the plan has one, and none elsewhere."""
    with_expert = plan_of_method({"name": "global-layers"}, expert={"path_start": 0.0})

    assert "nothing of it leaves the site" in page(with_expert)
    assert "expert" not in page(plan_of_method({"name": "global-layers"}))
