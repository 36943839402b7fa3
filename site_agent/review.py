"""What a plan would make this site send, in the words of `site-agent review`; pure.

A person approves a plan by this page, so it names everything that may leave, when, how large it may
be and what it means; what it does not name cannot leave (boundary/gate.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final, assert_never

from protos.ingredients import LayerIntervals, SensitivePrefix
from protos.manifest import Manifest, Occasion, Scalar
from protos.methods import method_names
from protos.plan import Plan
from protos.tensors import Layout
from protos.volume import most_bytes, rounds_with

# By the first word of the name, or by the whole name where there is one of its kind.
_MEANING: Final = {
    "rows": "its training rows, rounded to two significant bits",
    "kept": "whether it kept this layer in this round, times its weight",
    "distance": "how far this layer has moved from its last shared values, squared, times its weight",
    "sensitivity": "how much the loss depends on the layers up to this one, times its weight",
    "validation weight": "its validation rows, rounded as the rows are; 1 where all sites count the same",
    "validation loss": "the loss of the received model on its validation rows, times its weight",
    "still improving": "1 while its own validation loss has fallen lately, else 0",
    "sites with a metric": "1 if the metric is defined on its test rows, else 0",
    "metric": "the AUROC of its chosen model on its own test rows",
    "metric squared": "the square of that AUROC",
    "sites that gained": "1 if its chosen model has a larger AUROC than the network trained alone, else 0",
}


def review_lines(plan: Plan, manifest: Manifest) -> Iterator[str]:
    """The page, line by line."""
    yield f"Study {plan.study}, version {plan.version}, plan digest {plan.digest.hex()}"
    methods = " + ".join(method_names(plan.method))
    yield f"Method {methods}; masking {plan.secure_aggregation}; quorum {plan.quorum}"
    yield from _who(plan)
    yield from _rounds(plan)
    yield from _changes(plan, manifest)
    yield from _numbers(plan, manifest)
    if plan.columns:
        yield f"Every site sees the names of all encoded columns: {', '.join(plan.columns)}"
    yield from _choices(plan)
    each, total = Layout(manifest.parameters, 0).total_bytes, most_bytes(plan, manifest)
    yield f"{each} bytes a training round for the changes, {total} bytes in all at most; nothing else leaves."


def _who(plan: Plan) -> Iterator[str]:
    yield "Sites whose contributions are added up:"
    for site in plan.sites:
        yield f"  {site.name}  identity {site.identity}"
    if plan.secure_aggregation == "off":
        yield "Without masking the coordinator sees what each site sends, not only sums."
    elif plan.two_sites is not None:
        yield "The coordinator sees sums only, but each of the two sites can compute the other's part."
    else:
        yield (
            f"The coordinator sees sums over at least {plan.quorum} sites; this holds while at most "
            f"{plan.assumed_colluders} of the sites work together with it."
        )
    if plan.on_lost_site == "wait":
        yield "When a site is lost in the middle of a round, the others wait for it."
    else:
        yield (
            "When a site is lost in the middle of a round, the others train the round again without it, as often as "
            "this site's lost_site_budget allows: a coordinator that lies about a loss could then estimate a change."
        )


def _rounds(plan: Plan) -> Iterator[str]:
    yield f"{plan.rounds} rounds{' at most' if plan.early_stopping else ''}:"
    if plan.has_probe:
        yield "  1 probe: one epoch is trained, measured and undone; only the numbers below leave"
    what = "only the fact of taking part leaves" if plan.method.name == "local" else "changes leave"
    yield f"  {plan.schedule.rounds} of training: {what}"
    if plan.has_validation_round:
        yield "  1 of validation: the last shared model is measured; only the numbers below leave"
    if plan.gain == "sums":
        yield "  1 report: every site tests its chosen model; only the numbers below leave"


def _changes(plan: Plan, manifest: Manifest) -> Iterator[str]:
    method = plan.ingredients
    if not manifest.tensors:
        yield "No parameter is shared, so no change of any tensor leaves."
        return
    which = ""
    if isinstance(method.federated, SensitivePrefix):
        which = ", or of the first of their layers, as the probe decides"
    elif isinstance(method.server_rule, LayerIntervals):
        which = f"; of layers that stay close together only every {method.server_rule.slow_factor} rounds"
    yield f"Each round of training sends the change of {len(manifest.tensors)} tensors{which}:"
    for tensor in manifest.tensors:
        yield f"  {tensor.name} {'x'.join(map(str, tensor.shape))}"
    encoding = plan.encoding
    yield (
        f"A change beyond +-{encoding.clipping_range:g} is clipped; where more than "
        f"{encoding.largest_clipped_share:.2%} of the values are, nothing is sent."
    )


def _numbers(plan: Plan, manifest: Manifest) -> Iterator[str]:
    if not manifest.scalars:
        yield "No other number leaves."
        return
    is_masked = plan.secure_aggregation == "required"
    yield f"Numbers that leave beside the changes{', seen only as sums over the sites' if is_masked else ''}:"
    for occasion, scalars in groupby(manifest.scalars, key=lambda scalar: scalar.occasion):
        yield f"  in {_times(plan, occasion)}:"
        for scalar in scalars:
            yield f"    {scalar.name}: {_meaning(scalar)}; at most {scalar.bound / scalar.scale:g}"


def _meaning(scalar: Scalar) -> str:
    return _MEANING.get(scalar.name) or _MEANING[scalar.name.partition(" ")[0]]


def _times(plan: Plan, occasion: Occasion) -> str:
    count = rounds_with(plan, occasion)
    return f"{occasion} ({count} {'time' if count == 1 else 'times'})"


def _choices(plan: Plan) -> Iterator[str]:
    match plan.checkpoint:
        case "latest":
            yield "Checkpoint latest: every site keeps the model of the last round."
        case "local":
            yield "Checkpoint local: every site keeps the model that is best on its own validation rows."
        case "global":
            yield "Checkpoint global: every site keeps the model of the round with the lowest summed validation loss."
        case _:
            assert_never(plan.checkpoint)
    stopping = plan.early_stopping
    if stopping is not None:
        whose = "the validation loss over all sites" if stopping.signal == "global" else "no site's own validation loss"
        has = "has not fallen" if stopping.signal == "global" else "has fallen"
        yield f"Training ends early when {whose} {has} for {stopping.patience} measurements."
    if plan.gain == "private":
        yield "What this site gains by joining stays in its own report."
    else:
        yield "What the sites gain by joining is summed over all of them; this site's own report stays here."
    if plan.expert is not None:
        yield "Every site fits an expert to its own training rows; nothing of it leaves the site."
