"""A sealed key opens with its passphrase and in no other way."""

from __future__ import annotations

import json

import pytest

from pki.sealed_key import new_passphrase, seal, unseal
from protos.errors import ConfigurationError, RefusedError


def test_only_the_passphrase_opens_the_key() -> None:
    """The right passphrase gives the secret back; another is refused; the file does not show the secret."""
    sealed = seal(b"very secret", "correct horse battery")

    assert unseal(sealed, "correct horse battery") == b"very secret"
    assert b"very secret" not in sealed
    with pytest.raises(RefusedError):
        unseal(sealed, "correct horse batterx")


@pytest.mark.parametrize("name", ["salt", "nonce", "sealed", "function", "format"])
def test_a_changed_container_stays_closed(name: str) -> None:
    """A change in any field is refused, and the cost cannot be raised by the file."""
    fields = json.loads(seal(b"very secret", "correct horse battery"))
    fields[name] = ("B" if fields[name][0] == "A" else "A") + fields[name][1:]

    with pytest.raises((RefusedError, ConfigurationError)):
        unseal(json.dumps(fields).encode(), "correct horse battery")


def test_sealing_twice_differs() -> None:
    """Salt and nonce are fresh each time."""
    assert seal(b"s", "correct horse battery") != seal(b"s", "correct horse battery")


def test_short_passphrases_are_refused_and_new_ones_are_long() -> None:
    """Eleven characters are too few; a made passphrase has 26 random ones."""
    with pytest.raises(ConfigurationError, match="12"):
        seal(b"s", "elevenchars")

    assert len(new_passphrase().replace("-", "")) == 26
