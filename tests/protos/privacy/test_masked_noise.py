"""If the noise comes from the same stream, a masked sum of noisy numbers equals the unmasked one to the bit."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from protos.masking.mask_stream import Masker
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.wire.messages import Stage
from site_agent.gate.door import Builder
from site_agent.gate.privacy_ledger import with_noise
from tests.protos.privacy.private_plans import private_network_plan, private_plan


@pytest.mark.parametrize("plan", [private_network_plan(hidden=(3,)), private_plan()], ids=["network", "prior"])
@pytest.mark.parametrize("seed", range(5))
def test_masks_take_no_bit_from_the_noisy_sum(seed: int, plan: Plan) -> None:
    """Each gate's own encoding and masks over four sites: the sum has exactly the terms and the drawn noise."""
    sites, stage = plan.site_names, Stage.STATISTICS if isinstance(plan, PriorPlan) else Stage.TRAINING
    exchange = Exchanges(plan, manifest_of(plan)).of(0, stage, b"")
    layout, generator = exchange.layout, np.random.default_rng(seed)
    terms = {site: generator.integers(0, 1 << 38, len(exchange.scalars)) for site in sites}

    def noisy(site: str) -> list[int]:
        stream = np.random.default_rng([seed, sites.index(site)])
        return with_noise(plan, terms[site].tolist(), stream.bytes)

    total = np.zeros(layout.total_bytes // 8, np.uint64)
    for site in sites:
        builder = Builder(plan, trains=True, smallest_rows=1)
        payload = memoryview(terms[site].astype("<i8").tobytes())
        built = builder.build(bytes(32), exchange, payload, rows=0, noise=lambda _, site=site: noisy(site))
        keys = {peer: hashlib.sha256(f"{min(site, peer)}|{max(site, peer)}".encode()).digest() for peer in sites}
        del keys[site]
        masker = Masker(own=site, contributors=sites, pair_keys=keys, context=bytes(32), layout=layout)
        masked = b"".join(masker.masked(layout.body(built.buffer, index), index) for index in range(layout.chunks))
        assert masked != bytes(built.buffer)
        total += np.frombuffer(masked, "<u8")

    body = layout.body(bytearray(total.tobytes()), 0)
    expected = np.sum([noisy(site) for site in sites], axis=0)
    np.testing.assert_array_equal(np.array(layout.words(body, 0))[1:].astype(np.int64), expected)
