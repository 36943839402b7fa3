"""Methods whose sites end with models of their own, step by step against their formulas: two sites, three rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.for_each import for_each
from tests.site_agent.trainer.methods.by_hand import Loss, Values, descended, mean, moved, part, risk, slope, tensors
from tests.site_agent.trainer.methods.tiny import AHUS, BERLIN, DEEP, LOGISTIC, MLP, STEPS, Federation, check, tiny_plan

SITES: dict[str, Loss] = {"ahus": risk(AHUS), "berlin": risk(BERLIN)}
by_network = pytest.mark.parametrize("network", [LOGISTIC, MLP], ids=["logistic", "mlp"])


def _begin(plan_method: dict[str, Any], **changes: Any) -> tuple[Federation, dict[str, Values]]:
    """A federation, and each site's first values."""
    federation = Federation(tiny_plan(plan_method, **changes))
    return federation, {site: tensors(federation.own(site)) for site in SITES}


def _share(own: dict[str, Values], *names: str) -> tuple[Values, dict[str, Values]]:
    """The mean of these parts, and each site's values with it."""
    shared = part(mean(own.values()), *names)
    return shared, {site: values | shared for site, values in own.items()}


def _trained(federation: Federation, own: dict[str, Values], *names: str, first: int = 0) -> dict[str, Values]:
    """Each site's values after three rounds in which it trains all of them, and these parts become their mean."""
    for number in range(first, first + 3):
        federation.round(number)
        own = {site: descended(loss, own[site], STEPS) for site, loss in SITES.items()}
        for site in SITES:
            check(federation.own(site), own[site])
        shared, own = _share(own, *names)
        check(federation.shared, shared)
    return own


@by_network
def test_ditto(network: dict[str, Any]) -> None:
    """The shared model is FedAvg's; v -= lr * (grad(v) + strength * (v - x)) beside it, never reset."""
    federation, own = _begin({"name": "ditto", "strength": 0.8}, architecture=network)
    shared, personal = own["ahus"], own

    for number in range(3):
        federation.round(number)
        for site, loss in SITES.items():
            for _ in range(STEPS):
                v, pulled = personal[site], slope(loss, personal[site])
                personal = personal | {site: moved(v, {n: pulled[n] + 0.8 * (v[n] - shared[n]) for n in v})}
        shared = mean(descended(loss, shared, STEPS) for loss in SITES.values())
        check(federation.shared, shared)
        for site in SITES:
            check(federation.used(site), personal[site])


@by_network
def test_pfedme(network: dict[str, Any]) -> None:
    """K steps of t on loss + 15/2 * ||t - w||^2 from where t is, then w -= rate * 15 * (w - t)."""
    method = {"name": "pfedme", "strength": 1.5, "inner_steps": 3, "rate": 0.2}
    federation, own = _begin(method, architecture=network)
    shared = own["ahus"]

    for number in range(3):
        federation.round(number)
        ends = []
        for site, loss in SITES.items():
            w = t = shared
            for _ in range(STEPS):
                for _ in range(3):
                    pulled = slope(loss, t)
                    t = moved(t, {n: pulled[n] + 1.5 * (t[n] - w[n]) for n in t})
                w = {n: w[n] - 0.2 * 1.5 * (w[n] - t[n]) for n in w}
            ends.append(w)
            check(federation.used(site), t)
        shared = mean(ends)
        check(federation.shared, shared)


@by_network
def test_apfl(network: dict[str, Any]) -> None:
    """Each step first w, then v on the mixture's loss; after a round the share moves along its own slope."""
    federation, own = _begin({"name": "apfl", "share": 0.4, "share_rate": 0.9}, architecture=network)
    shared, v, share = own["ahus"], own, dict.fromkeys(SITES, 0.4)

    def mixed(site: str, w: Values) -> Values:
        return {n: share[site] * v[site][n] + (1 - share[site]) * w[n] for n in w}

    for number in range(3):
        federation.round(number)
        ends = []
        for site, loss in SITES.items():
            w, a = shared, share[site]
            for _ in range(STEPS):
                along_w = slope(loss, w)
                w = moved(w, along_w)
                along_v = {n: a * found for n, found in slope(loss, mixed(site, w)).items()}
                v = v | {site: moved(v[site], along_v)}
            products = [((v[site][n] - w[n]) * (a * along_v[n] + (1 - a) * along_w[n])).sum() for n in w]
            share[site] = min(1.0, max(0.0, a - 0.9 * (float(sum(products)) + 0.02 * a)))
            ends.append(w)
            check(federation.used(site), mixed(site, w))
        shared = mean(ends)
        check(federation.shared, shared)

    assert len({round(a, 3) for a in share.values()} | {0.4}) == 3  # both have moved, and differently


def test_apfl_keeps_the_share_between_0_and_1() -> None:
    """A step that would lead beyond is cut off: at 1 the site uses v alone, at 0 the shared model alone."""
    for start, rate in ((1.0, 0.0), (0.02, 10.0)):
        federation, _ = _begin({"name": "apfl", "share": start, "share_rate": rate})

        federation.round(0)

        share = float(federation.studies["ahus"]._training.local.state()["procedure/share"])
        assert 0.0 <= share <= 1.0
        assert rate or share == 1.0


@pytest.mark.parametrize(
    ("method", "shared_parts", "private", "keys"),
    [
        ("fedper", ("input", "body"), "head.layer3.weight", {"outputs": None}),
        ("lg-fedavg", ("body", "head"), "input.layer1.weight", {"columns": None}),
    ],
)
def test_fedper_and_lg_fedavg(method: str, shared_parts: tuple[str, ...], private: str, keys: dict[str, None]) -> None:
    """The head, or the first layer, is the site's own and is trained in the same steps; all else is shared."""
    federation, own = _begin({"name": method}, architecture=DEEP, **keys)
    assert not torch.equal(own["ahus"][private], own["berlin"][private])

    own = _trained(federation, own, *shared_parts)
    federation.finish()

    for site in SITES:
        check(federation.used(site), own[site])


def test_fedrep() -> None:
    """Three epochs of the head on the received body, then two steps of the body under that head; never both."""
    federation, own = _begin({"name": "fedrep", "head_epochs": 3}, outputs=None)

    for number in range(3):
        federation.round(number)
        for site, loss in SITES.items():
            headed = descended(loss, own[site], 3, part(own[site], "head"))
            own[site] = descended(loss, headed, STEPS, part(own[site], "input"))
            check(federation.own(site), own[site])
        shared, own = _share(own, "input")
        check(federation.shared, shared)


@pytest.mark.parametrize("epochs", [0, 2])
def test_fedbabu(epochs: int) -> None:
    """The head stays at one start that all share; at the end each site trains everything for some epochs."""
    federation, own = _begin({"name": "fedbabu", "fine_tuning_epochs": epochs}, outputs=None)
    assert torch.equal(own["ahus"]["head.layer2.weight"], own["berlin"]["head.layer2.weight"])

    for number in range(3):
        federation.round(number)
        own = {site: descended(loss, own[site], STEPS, part(own[site], "input")) for site, loss in SITES.items()}
        shared, own = _share(own, "input")
        check(federation.shared, shared)
    federation.finish()

    for site, loss in SITES.items():
        check(federation.used(site), own[site])
        tuned = federation.studies[site].conclude()
        check({n: a.astype(float) for n, a in tuned.values.items()}, descended(loss, own[site], epochs))


def test_local_adaptation() -> None:
    """FedAvg to the end, then three epochs of everything at each site, on a copy that nobody sees."""
    federation, own = _begin({"name": "local-adaptation", "fine_tuning_epochs": 3})
    shared = own["ahus"]

    for number in range(3):
        federation.round(number)
        shared = mean(descended(loss, shared, STEPS) for loss in SITES.values())
        check(federation.shared, shared)
    federation.finish()

    for site, loss in SITES.items():
        tuned = federation.studies[site].conclude()
        check({n: a.astype(float) for n, a in tuned.values.items()}, descended(loss, shared, 3))


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_global_layers(rate: float) -> None:
    """The layer between is set to (1 - rate) own + rate mean, from the second round on, and once at the end."""
    method = {"name": "global-layers", "update_rate": rate}
    federation, own = _begin(method, architecture=DEEP, columns=None, outputs=None)
    shared = part(own["ahus"], "body")
    assert torch.equal(shared["body.layer2.weight"], own["berlin"]["body.layer2.weight"])

    for number in range(3):
        federation.round(number)
        own = {site: descended(loss, own[site], STEPS) for site, loss in SITES.items()}
        # A site sends the update from the received values, even if it kept a part of its own.
        shared = part(mean(own.values()), "body")
        check(federation.shared, shared)
        own = {
            site: values | {n: (1 - rate) * values[n] + rate * new for n, new in shared.items()}
            for site, values in own.items()
        }
    federation.finish()
    federation.finish()

    for site in SITES:
        check(federation.used(site), own[site])


def _layers_sensitivity(values: Values, loss: Loss) -> list[float]:
    """F_l: the running sum over layers of the mean of (value * gradient)^2."""
    found, sums, running = slope(loss, values), [], 0.0
    for name in ("input.layer1", "body.layer2", "head.layer3"):
        numbers = [((values[n] * found[n]) ** 2).flatten() for n in part(values, name)]
        running += float(torch.cat(numbers).mean())
        sums.append(running)
    return sums


@pytest.mark.parametrize("threshold", [1.0001, 1e6], ids=["first-layer", "all-but-the-last"])
def test_player_fl(threshold: float) -> None:
    """After one epoch F of all layers, summed over the sites; then training from the start, layers up to p shared."""
    federation, own = _begin({"name": "player-fl", "threshold": threshold}, architecture=DEEP)
    names = ["input"] if threshold < 2 else ["input", "body"]

    probed = federation.round(0)
    each = [_layers_sensitivity(descended(loss, own[site], 1), loss) for site, loss in SITES.items()]

    for answer, expected in zip(probed.values(), each, strict=True):
        assert answer.updates.size == 0
        assert [scalar / 2**52 for scalar in answer.scalars] == pytest.approx(expected, rel=1e-4)
    assert federation.run.course.sensitivities == pytest.approx([sum(both) for both in zip(*each, strict=True)], 1e-4)
    own = _trained(federation, own, *names, first=1)
    federation.finish()

    for site in SITES:
        check(federation.used(site), own[site])


@for_each("seed", range(4))
def test_player_fl_random(seed: int) -> None:
    """The plan's seed draws how many layers from the input on are shared; never the last."""
    federation, own = _begin({"name": "player-fl-random"}, architecture=DEEP, start={"seed": seed})
    names = tuple(federation.run.manifest.layers)
    assert names in (("input.layer1",), ("input.layer1", "body.layer2"))

    _trained(federation, own, *names)
