"""The identity key of a site, which a service and a command may ask for at the same moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from pki.identity_key import identity_fingerprint, make_identity_key
from protos.errors import ConfigurationError
from site_agent.service import enrolling


def test_whoever_asks_at_the_same_moment_gets_the_same_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find no key, both make one, one of them wins: both have its fingerprint."""
    for number in range(20):
        folder, start = tmp_path / str(number), Barrier(2, timeout=10)

        def made(where: Path, start: Barrier = start) -> object:
            start.wait()
            return make_identity_key(where)

        monkeypatch.setattr(enrolling, "make_identity_key", made)
        with ThreadPoolExecutor(2) as threads:
            keys = list(threads.map(enrolling.site_identity_key, [folder, folder]))

        assert len({identity_fingerprint(key) for key in keys}) == 1


def test_a_key_that_cannot_be_made_is_still_an_error(tmp_path: Path) -> None:
    """A file where the folder should be is named."""
    (tmp_path / "gate").write_text("")

    with pytest.raises(ConfigurationError):
        enrolling.site_identity_key(tmp_path / "gate")
