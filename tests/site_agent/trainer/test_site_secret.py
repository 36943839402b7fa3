"""The secret from which a site's private draws follow."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from protos.errors import UnavailableError
from site_agent.trainer.disk import SECRET_BYTES, site_secret
from site_agent.trainer.requests import Asked
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study
from tests.for_each import some
from tests.laws.catalogue import NAMES, catalogue_plan, rows_at
from tests.site_agent.trainer.sites import first_values, make_plan, make_site, make_study, numbers_of


def test_the_secret_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    """Two folders have two secrets, each never changes, and no other account can read them."""
    first, second = site_secret(tmp_path / "a"), site_secret(tmp_path / "b")

    assert first != second
    assert len(first) == len(second) == SECRET_BYTES
    assert site_secret(tmp_path / "a") == first
    (path,) = (tmp_path / "a").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_secret_that_others_can_read_is_refused_and_kept(tmp_path: Path, mode: int) -> None:
    """The trainer stops and changes nothing."""
    secret = site_secret(tmp_path)
    (path,) = tmp_path.iterdir()
    path.chmod(mode)

    with pytest.raises(UnavailableError, match="other accounts"):
        site_secret(tmp_path)
    assert path.read_bytes() == secret


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)])
def test_a_secret_of_another_length_is_refused(tmp_path: Path, content: bytes) -> None:
    """A cut or exchanged secret is not silently replaced by a new one."""
    path = tmp_path / "site.secret"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(UnavailableError, match="another length"):
        site_secret(tmp_path)
    assert path.read_bytes() == content


def test_a_link_in_the_place_of_the_secret_is_refused(tmp_path: Path) -> None:
    """No link is followed out of the trainer's folder."""
    (tmp_path / "site.secret").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UnavailableError):
        site_secret(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", some(NAMES, 3))
def test_with_its_secret_a_site_repeats_every_method_to_the_bit(name: str) -> None:
    """Equal plan, rows and secret give equal bits; another secret or another version of the plan gives others."""
    plan = catalogue_plan(name, dropout=0.2)
    again = catalogue_plan(name, dropout=0.2, version=2)

    def trained(secret: bytes, of: object = plan) -> bytes:
        chosen = plan if of is plan else again
        study = Study(chosen, rows_at("ahus"), seeds=Seeds.secret(secret, chosen, "ahus"))
        if not chosen.has_probe:
            exchange = study.exchange(Asked(round=0))
            received = first_values(chosen, study)
            study.train(Asked(round=0), np.append(received, np.zeros(exchange.down_numbers - received.size, "f4")))
        return numbers_of(study)

    one, other = bytes(range(32)), bytes(32)

    assert trained(one) == trained(one)
    assert trained(one) != trained(other)
    assert trained(one) != trained(one, again)


def test_the_secret_is_in_no_text(tmp_path: Path) -> None:
    """The printed form of a site's seeds does not show their origin, so no log and no failure does."""
    secret = site_secret(tmp_path)
    seeds = Seeds.secret(secret, catalogue_plan("fedavg"), "ahus")

    assert isinstance(seeds.origin, bytes)
    assert secret != seeds.origin
    assert seeds.origin.hex() not in repr(seeds)
    assert repr(seeds.origin) not in repr(seeds)


def test_a_hospitals_trainer_draws_from_its_secret_and_goes_on_with_it(tmp_path: Path) -> None:
    """Two sites with equal rows and names draw differently; begun again from its state, a site draws the same."""
    plan = make_plan()
    configs = [make_site(tmp_path / name, draws="secret") for name in ("one", "other")]

    one, other, again = (numbers_of(make_study(config, plan)) for config in (*configs, configs[0]))

    assert one == again
    assert one != other
    assert (tmp_path / "one/state/models/site.secret").is_file()
